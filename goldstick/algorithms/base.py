"""What an algorithm is: where it acts, what it needs to see there, what it decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

from torch import Tensor

from goldstick.core.edits import Edit
from goldstick.core.scheme import Scheme
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import Targets, matches, unmatched

Indivisible = Literal["error", "channel", "skip"]
Tie = Literal["error", "untie", "keep"]


class Exposure(StrEnum):
    """How an algorithm meets data."""

    NONE = "none"  # decides from the weights alone
    BLOCKWISE = "blockwise"  # observes inputs, block by block
    TRAINING = "training"  # trains stand-ins with a loss


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """One algorithm that turns weights into codes.

    A frozen dataclass: its fields are its options, its YAML block is its constructor call. It decides and never
    touches the model.

    Attributes:
        scheme: What the layers become: a name such as ``w4a16-g128`` or a full :class:`Scheme`.
        targets: Which layers.
        overrides: Patterns with schemes of their own, the last match winning (mixed precision).
        indivisible: What to do where the group size does not divide a layer's inputs: stop with an ``error``, give
            the layer one scale per ``channel``, or ``skip`` it.
        tie: What to do with a targeted weight that is tied to another: stop with an ``error``, ``untie`` them and
            quantize only the target, or ``keep`` the tie and quantize both ends as one.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: ClassVar[str]
    exposure: ClassVar[Exposure]

    scheme: Scheme | str = "w4a16-g128"
    targets: Targets = field(default_factory=Targets)
    overrides: dict[str, Scheme | str] = field(default_factory=dict)
    indivisible: Indivisible = "error"
    tie: Tie = "error"

    def __post_init__(self) -> None:
        self.schemes()

    @abstractmethod
    def attach(self, site: Site) -> Any:
        """What it needs to see at a site, before any data arrive: its state there."""

    @abstractmethod
    def solve(self, site: Site, weight: Tensor, state: Any, scheme: Scheme) -> Sequence[Edit]:
        """What it decides for one site, from the canonical matrix [..., out, in] and what it saw."""

    @property
    def fractional_zeros(self) -> bool:
        """Whether it may give zeros that are not whole numbers, which some formats cannot hold."""
        return False

    def sites(self, network: Network) -> Sequence[Site]:
        """The targeted sites; every override pattern must match one of them."""
        chosen = self.targets.select(network)
        for pattern in self.overrides:
            if not any(matches(pattern, site.name) for site in chosen):
                raise unmatched(pattern, chosen, "overrides")
        return chosen

    def scheme_for(self, site: Site) -> Scheme:
        """What a site becomes, overrides applied, before divisibility is looked at."""
        wanted = self.scheme
        for pattern, scheme in self.overrides.items():
            if matches(pattern, site.name):
                wanted = scheme
        return _parse(wanted)

    def schemes(self) -> tuple[Scheme, ...]:
        """Every scheme the options name."""
        return tuple(_parse(scheme) for scheme in (self.scheme, *self.overrides.values()))


def _parse(scheme: Scheme | str) -> Scheme:
    return Scheme.parse(scheme) if isinstance(scheme, str) else scheme
