"""Grid: how one tensor maps to integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from goldstick.errors import RecipeError

Granularity = Literal["channel", "group", "token", "tensor"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The integer grid of one tensor: w ≈ (code − zero) · scale, code ∈ {0, …, 2^bits − 1}.

    Codes are unsigned in memory. A symmetric grid has the fixed zero 2^(bits−1) and the scale
    max|w| / ((2^bits − 1) / 2); an asymmetric one has its own zero and the scale (max − min) / (2^bits − 1), the
    range always containing 0.

    Attributes:
        bits: Bits per code, 1 to 8.
        symmetric: Whether the zero is fixed at the middle of the codes.
        granularity: What shares one scale: an output ``channel`` (a row of the weight), a ``group`` of consecutive
            inputs in a row, a ``token`` (activations only, computed at run time) or the whole ``tensor`` (activations
            only, fixed beforehand from calibration data).
        group_size: Inputs per group; given exactly when the granularity is ``group``.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    bits: int = 8
    symmetric: bool = True
    granularity: Granularity = "channel"
    group_size: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise RecipeError(f"A grid has 1 to 8 bits, not {self.bits}.")
        if self.granularity not in get_args(Granularity):
            raise RecipeError(f"A grid has scales by channel, group, token or tensor, not by {self.granularity!r}.")
        if self.granularity == "group":
            if self.group_size is None or self.group_size < 2:
                raise RecipeError(f"A grid by group needs a group_size of at least 2, not {self.group_size}.")
        elif self.group_size is not None:
            raise RecipeError(
                f"group_size {self.group_size} has no meaning with granularity {self.granularity!r}; "
                "leave it out or set granularity: group."
            )

    @property
    def code_max(self) -> int:
        """The largest code, 2^bits − 1."""
        return (1 << self.bits) - 1

    @property
    def midpoint(self) -> int:
        """The zero of a symmetric grid, 2^(bits−1)."""
        return 1 << (self.bits - 1)

    @property
    def dynamic(self) -> bool:
        """Whether scales are computed from the data at run time (per token)."""
        return self.granularity == "token"

    def divides(self, in_features: int) -> bool:
        """Whether rows of ``in_features`` inputs split into whole groups."""
        return self.group_size is None or in_features % self.group_size == 0

    def group_width(self, in_features: int) -> int:
        """Inputs that share a scale in a row of ``in_features`` inputs."""
        return self.group_size or in_features

    def groups(self, in_features: int) -> int:
        """Number of scales per row."""
        return -(-in_features // self.group_width(in_features))

    @property
    def label(self) -> str:
        """A short name such as ``w4-g128`` or ``w8-channel-asym``, without the letter of what it quantizes."""
        grain = f"g{self.group_size}" if self.granularity == "group" else self.granularity
        return f"{self.bits}-{grain}" + ("" if self.symmetric else "-asym")
