"""The float model beside the one that is being quantized: what its layers are given at the same places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from goldstick.calibration.passes import Groups, Passes
from goldstick.calibration.pauses import CapturedInput
from goldstick.core.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class Original:
    """A block (or a whole model) as it was before anything in it was rounded or scaled, with inputs of its own.

    Attributes:
        module: The copy.
        path: Where its counterpart lies in the network; empty for a whole model.
        runs: Its forward on each batch, from what the float blocks before it gave.
    """

    module: nn.Module
    path: str
    runs: Sequence[Callable[[], Tensor]]

    def counterpart(self, path: str) -> nn.Module:
        """The copy of the network's module at ``path``."""
        return self.module.get_submodule(path.removeprefix(self.path).removeprefix("."))


class OriginalPasses:
    """The float model's passes, which come as far as the group at hand of those that they go beside.

    Args:
        original: The float block.
        groups: Copies of the layers of each group.
        kind: Of passes; as the ones beside.
        ranks: Who has passes of other batches.
    """

    def __init__(
        self, original: Original, groups: Groups, kind: Callable[..., Passes], ranks: Ranks | None = None
    ) -> None:
        self._passes = kind(original.runs, groups, ranks=ranks)
        self._numbers = self._passes.groups()
        self._at: int | None = -1
        self._wanted = -1

    def go_to(self, number: int) -> None:
        """Go on up to a group; numbers rise."""
        self._wanted = number
        while self._at is not None and self._at < number:
            self._at = next(self._numbers, None)

    def captured_inputs(self) -> Iterator[CapturedInput]:
        """The batches that have come to the group, in their order; none where the float model passes it by."""
        return self._passes.captured_inputs() if self._at == self._wanted else iter(())

    def outputs(self) -> Iterator[Tensor]:
        """What the float block gives, batch by batch."""
        while self._at is not None:
            self._at = next(self._numbers, None)
        return self._passes.outputs()
