"""Passes forward and back through a float block, for the gradients at the outputs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from goldstick.calibration.end_gradients import output_gradients
from goldstick.calibration.spilled import Spilled
from goldstick.core.disk_space import free_for_temporary_files
from goldstick.core.token_mask import TokenMask
from goldstick.errors import OutputError

Gradients = Mapping[str, tuple[Tensor, Tensor | None]]
"""Site name → the gradients at its outputs on a batch, float32, and which of the tokens count."""


@dataclass(kw_only=True)
class GradientPasses:
    """What all batches give, one after the other, once or twice.

    Attributes:
        layers: Site name → the float layer.
        runs: The forward of the float block on each batch.
        ahead: ∂L/∂y of what the block gives, batch by batch; ``None`` for ±1 by chance.
        masks: Which tokens of each batch count.
        first: Number of the first batch, where others are seen elsewhere.
        twice: Sites that are looked at twice. Their gradients wait on disk, which takes less time than another pass.
            Those of other devices are sooner found again, and so are those that would take more than half of what is
            free there.
    """

    layers: Mapping[str, nn.Module]
    runs: Sequence[Callable[[], Tensor]]
    ahead: Sequence[Tensor] | None
    masks: Sequence[TokenMask]
    first: int
    twice: Collection[str]
    _waiting: Spilled | None = field(default=None, init=False)
    _places: dict[int, dict[str, int]] = field(default_factory=dict, init=False)
    _full: bool = field(default=False, init=False)

    def once(self) -> Iterator[Gradients]:
        """Batch by batch."""
        for index in range(len(self.runs)):
            found = self._found(index)
            kept = {name: gradient for name, gradient in found.items() if name in self.twice}
            if index == 0:
                self._full = not self._fit(list(kept.values()))
            if kept and not self._full:
                self._keep(index, kept)
            yield self._with_masks(index, found)

    def again(self) -> Iterator[Gradients]:
        """Batch by batch, of the sites that are looked at twice at least; behind :meth:`once`."""
        for index in range(len(self.runs)):
            yield self._with_masks(index, self._read(index) if index in self._places else self._found(index))

    def _found(self, index: int) -> dict[str, Tensor]:
        ahead = None if self.ahead is None else self.ahead[index]
        return output_gradients(self.layers, self.runs[index], ahead, self.masks[index], self.first + index)

    def _fit(self, gradients: Sequence[Tensor]) -> bool:
        """Whether those of all batches may wait on disk, given those of the first."""
        nbytes = len(self.runs) * sum(gradient.nbytes for gradient in gradients)
        return all(gradient.device.type == "cpu" for gradient in gradients) and 2 * nbytes <= free_for_temporary_files()

    def _keep(self, index: int, gradients: Mapping[str, Tensor]) -> None:
        try:
            self._waiting = Spilled(()) if self._waiting is None else self._waiting
            self._places[index] = {name: self._waiting.append(gradient) for name, gradient in gradients.items()}
        except OutputError:  # no room
            self._waiting, self._full = None, True
            self._places.clear()

    def _read(self, index: int) -> dict[str, Tensor]:
        assert self._waiting is not None
        return {name: self._waiting[place] for name, place in self._places[index].items()}

    def _with_masks(self, index: int, found: Mapping[str, Tensor]) -> Gradients:
        return {name: (gradient, self.masks[index].of(gradient)) for name, gradient in found.items()}
