"""Grid: how one tensor maps to codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from goldstick.core.element import E8M0, ELEMENTS, INTEGER, Element
from goldstick.errors import RecipeError

Granularity = Literal["channel", "group", "block", "token", "tensor", "none"]

#: Granularities with a size.
_SIZED = ("group", "block")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of one tensor: w ≈ value(code) · scale.

    Of integers the value is code − zero, code ∈ {0, …, 2^bits − 1}. Codes are unsigned in memory. A symmetric grid has
    the fixed zero 2^(bits−1) and the scale max|w| / ((2^bits − 1) / 2); an asymmetric one has its own zero and the
    scale (max − min) / (2^bits − 1), the range always containing 0.

    Of another ``element`` the value stands in its table (:mod:`goldstick.core.element`), and the scale is
    max|w| / the largest of them.

    Attributes:
        bits: Bits per code, 1 to 8; those of the element.
        symmetric: Whether the zero is fixed at the middle of the codes.
        granularity: What shares one scale: an output ``channel`` (a row of the weight), a ``group`` of consecutive
            inputs in a row, a square ``block`` of rows and inputs, a ``token`` (activations only, computed at run time)
            or the whole ``tensor``. A grid of scales that has no scale of its own says ``none``.
        group_size: Inputs per group; given exactly when the granularity is ``group`` or ``block``.
        element: What codes stand for: ``int``, or a float type such as ``e4m3`` or ``e2m1``.
        scale: The grid that scales lie on in their turn; ``None`` where they are floats in the dtype of the layer.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    bits: int = 8
    symmetric: bool = True
    granularity: Granularity = "channel"
    group_size: int | None = None
    element: str = INTEGER
    scale: Grid | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise RecipeError(f"A grid has 1 to 8 bits, not {self.bits}.")
        if self.granularity not in get_args(Granularity):
            raise RecipeError(
                f"A grid has scales by channel, group, block, token or tensor, not by {self.granularity!r}."
            )
        if self.granularity in _SIZED:
            if self.group_size is None or self.group_size < 2:
                raise RecipeError(
                    f"A grid by {self.granularity} needs a group_size of at least 2, not {self.group_size}."
                )
        elif self.group_size is not None:
            raise RecipeError(
                f"group_size {self.group_size} has no meaning with granularity {self.granularity!r}; "
                "leave it out or set granularity: group."
            )
        self._check_element()

    def _check_element(self) -> None:
        if self.element == INTEGER:
            if self.scale is not None:
                raise RecipeError("An integer grid has float scales; leave out 'scale'.")
            return
        bits = 8 if self.element == E8M0 else ELEMENTS[self.element].bits if self.element in ELEMENTS else None
        if bits is None:
            known = ", ".join([INTEGER, *ELEMENTS])
            raise RecipeError(f"No element is called {self.element!r}; there are {known}.")
        if self.bits != bits or not self.symmetric:
            raise RecipeError(
                f"The element {self.element} has {bits} bits and no zero: write bits: {bits} and leave out 'symmetric'."
            )
        if (self.element == E8M0) != (self.granularity == "none"):
            raise RecipeError(
                "Powers of two (e8m0) are the grid of scales, with granularity: none; others have scales."
            )
        if self.scale is not None and self.scale not in (POWERS_OF_TWO, FLOAT8_SCALES):
            raise RecipeError(
                "Scales lie on a grid of powers of two (element: e8m0, granularity: none) or of FP8 with one scale a "
                f"tensor (element: e4m3, granularity: tensor), not on {self.scale.label}."
            )

    @property
    def float_element(self) -> Element | None:
        """The table of what codes stand for; ``None`` for integers."""
        return ELEMENTS.get(self.element)

    @property
    def integers(self) -> bool:
        """Whether codes are integers."""
        return self.element == INTEGER

    @property
    def code_max(self) -> int:
        """The largest code, 2^bits − 1."""
        return (1 << self.bits) - 1

    @property
    def midpoint(self) -> int:
        """The zero of a symmetric grid of integers, 2^(bits−1)."""
        return 1 << (self.bits - 1)

    @property
    def steps_to_end(self) -> float:
        """Scales from zero to the end of a symmetric range."""
        element = self.float_element
        return self.code_max / 2 if element is None else element.largest

    @property
    def dynamic(self) -> bool:
        """Whether every scale of an activation is computed from the data at run time."""
        return self.granularity == "token" or (self.granularity == "group" and not self.tensor_scaled)

    @property
    def tensor_scaled(self) -> bool:
        """Whether scales have a scale in their turn: one for the tensor."""
        return self.scale is not None and self.scale.granularity == "tensor"

    def divides(self, in_features: int) -> bool:
        """Whether rows of ``in_features`` inputs split into whole groups; blocks may end early."""
        return self.granularity != "group" or in_features % self.group_width(in_features) == 0

    def group_width(self, in_features: int) -> int:
        """Inputs that share a scale in a row of ``in_features`` inputs."""
        return self.group_size or in_features

    def groups(self, in_features: int) -> int:
        """Number of scales per row."""
        return -(-in_features // self.group_width(in_features))

    @property
    def label(self) -> str:
        """A short name such as ``4-g128`` or ``8-channel-asym``, without the letter of what it quantizes."""
        sized = {"group": f"g{self.group_size}", "block": f"b{self.group_size}"}
        grain = sized.get(self.granularity, self.granularity)
        if self.integers:
            return f"{self.bits}-{grain}" + ("" if self.symmetric else "-asym")
        return f"{self.element}-{grain}" + (f"-{self.scale.element}" if self.scale else "")

    @property
    def input_name(self) -> str:
        """What kernels call inputs on this grid: ``int8-token``, ``int8-tensor`` or the label of float elements."""
        return f"int8-{self.granularity}" if self.integers else self.label

    def described(self) -> dict[str, Any]:
        """The fields as checkpoints and reports write them: what only float elements have is left out of integers'."""
        fields: dict[str, Any] = {
            "bits": self.bits,
            "symmetric": self.symmetric,
            "granularity": self.granularity,
            "group_size": self.group_size,
        }
        if not self.integers:
            fields |= {"element": self.element, "scale": self.scale.described() if self.scale else None}
        return fields


POWERS_OF_TWO = Grid(element=E8M0, granularity="none")
"""The grid of MX scales."""

FLOAT8_SCALES = Grid(element="e4m3", granularity="tensor")
"""The grid of NVFP4's scales: FP8 over one float32 for the tensor."""
