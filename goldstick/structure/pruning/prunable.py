"""Channels that can be cut together, as data, and the edit that cuts some of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from goldstick.core.edits import Prune, Slice


@dataclass(frozen=True, kw_only=True)
class Member:
    """One side of a layer that belongs to a group.

    Attributes:
        module: Path of the layer.
        side: Whether its rows (``output``) or its columns (``input``).
        units: For each channel of that side, the number of the unit it goes with; −1 where it belongs to none.
    """

    module: str
    side: Literal["input", "output"]
    units: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """Channels, or heads, that can be cut one by one, and all that goes with them.

    Attributes:
        name: Path of the layer whose rows were masked.
        units: How many there are.
        heads: Whether a unit is several channels of that layer: a head, with all query heads that share its values.
        members: The sides of layers that lose channels.
        norm: The batch norm whose gain says how strong a channel is; ``None`` where there is none.
        scattered: The batch norm that gives zeros in the place of channels that are cut; ``None`` where none must.
        error: ‖y′ − y‖ / ‖y‖ of the cut network's output y′ and the masked one's, in float64.
    """

    name: str
    units: int
    heads: bool
    members: tuple[Member, ...]
    norm: str | None
    scattered: str | None
    error: float

    @property
    def gate(self) -> Member:
        """Where a unit can be weighed as a whole: the one layer that reads it, or else the one that makes it."""
        readers = [member for member in self.members if member.side == "input"]
        return readers[0] if len(readers) == 1 and self.norm is None else self.members[0]

    def step(self, multiple: int) -> int:
        """How many units go together so that every layer that reads them reads a multiple of so many columns."""
        columns = [member.units.count(0) for member in self.members if member.side == "input"]
        return math.lcm(*(multiple // math.gcd(multiple, count) for count in columns))

    def moved(self, block: str, other: str) -> Prunable:
        """The same group in another block of the same shapes."""

        def move(path: str) -> str:
            return other + path.removeprefix(block)

        return replace(
            self,
            name=move(self.name),
            members=tuple(replace(member, module=move(member.module)) for member in self.members),
            norm=None if self.norm is None else move(self.norm),
            scattered=None if self.scattered is None else move(self.scattered),
        )


def cut_of(dropped: Mapping[str, Collection[int]], groups: Sequence[Prunable]) -> Prune:
    """The edit that cuts units out of groups: name of a group → which units."""
    lost: dict[tuple[str, Literal["input", "output"]], tuple[int, set[int]]] = {}
    for group in groups:
        gone = set(dropped.get(group.name, ()))
        for member in group.members:
            _, channels = lost.setdefault((member.module, member.side), (len(member.units), set()))
            channels.update(index for index, unit in enumerate(member.units) if unit in gone)
    slices = tuple(
        Slice(module=module, side=side, kept=tuple(i for i in range(width) if i not in channels), width=width)
        for (module, side), (width, channels) in lost.items()
        if channels
    )
    touched = {one.module for one in slices}
    scattered = tuple(group.scattered for group in groups if group.scattered is not None and group.scattered in touched)
    return Prune(slices=slices, scattered=scattered)
