"""What the structure probe finds out about a block, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from goldstick.core.edits import Fold

Kind = Literal["norm", "linear"]


@dataclass(frozen=True, kw_only=True)
class InputGroup:
    """Sites of one block that receive the same tensor.

    Attributes:
        sites: Their names, in order of execution.
        in_features: Channels of that tensor.
    """

    sites: tuple[str, ...]
    in_features: int


@dataclass(frozen=True, kw_only=True)
class FoldPair:
    """A producer that can absorb a per-channel scale of an input group: tried, and the output stayed.

    Attributes:
        producer: Path of a norm, or name of a site.
        consumers: The sites of the input group.
        kind: What the producer is.
        unit_offset: Whether it is a norm that multiplies by 1 + weight.
        first_channel: First of the producer's output channels that the group reads.
        error: ‖y' − y‖ / ‖y‖ of the block's output in float32.
    """

    producer: str
    consumers: tuple[str, ...]
    kind: Kind
    unit_offset: bool
    first_channel: int
    error: float

    def moved(self, block: str, other: str) -> FoldPair:
        """The same pair in another block of the same shapes."""
        consumers = tuple(other + name.removeprefix(block) for name in self.consumers)
        return replace(self, producer=other + self.producer.removeprefix(block), consumers=consumers)

    def fold(self, scale: Tensor) -> Fold:
        """The edit that folds ``scale`` [channels] here."""
        return Fold(
            producer=self.producer,
            consumers=self.consumers,
            scale=scale,
            first_channel=self.first_channel,
            unit_offset=self.unit_offset,
        )


@dataclass(frozen=True, kw_only=True)
class BlockStructure:
    """What probing one block found.

    Attributes:
        block: Path of the block.
        groups: Every site of the block that ran, by the tensor it receives, in order of execution.
        folds: The accepted folds, at most one of each kind per group.
        worst_accepted: Largest error among ``folds``, or ``None`` without any.
        best_rejected: Smallest error among the candidates that were refused, or ``None`` without any.
        seconds: What the probe took.
        idle: Sites that did not run on these inputs. Folds of groups as wide as one of them are not tried.
        untried: Sites whose groups came after as many trials as were allowed: folds into them are not known.
        like: The block of the same shapes that was probed in place of this one; ``None`` if this one was.
        inputs_of: The block whose inputs this one was probed on, where its own could not be captured.
        problem: Why there are no groups and folds, or ``None``.
    """

    block: str
    groups: tuple[InputGroup, ...] = ()
    folds: tuple[FoldPair, ...] = ()
    worst_accepted: float | None = None
    best_rejected: float | None = None
    seconds: float = 0.0
    idle: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    like: str | None = None
    inputs_of: str | None = None
    problem: str | None = None

    def moved_to(self, block: str) -> BlockStructure:
        """The same findings about another block of the same shapes."""

        def move_all(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(block + name.removeprefix(self.block) for name in names)

        return replace(
            self,
            block=block,
            groups=tuple(replace(group, sites=move_all(group.sites)) for group in self.groups),
            folds=tuple(pair.moved(self.block, block) for pair in self.folds),
            idle=move_all(self.idle),
            untried=move_all(self.untried),
            like=self.block,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for the report."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    # JSON has no infinity: an output that became NaN is told as such.
    return "not a number" if isinstance(value, float) and value == float("inf") else value
