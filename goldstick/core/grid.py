"""Grid: how one tensor maps to codes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from goldstick.core.element import E8M0, ELEMENTS, INTEGER, Element
from goldstick.errors import RecipeError

Granularity = Literal["channel", "group", "block", "token", "tensor", "none"]

#: Weights of a small block and of a superblock of ggml.
BLOCK, SUPERBLOCK = 32, 256
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

    Where scales lie on a grid of integers by group, as those of K-quants do, ``scale.group_size`` weights of a row are
    a superblock with one scale d of its scales, and an asymmetric grid has minimums instead of zeros, integers with
    a scale d' of their own: w ≈ d · scale · code − d' · minimum.

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
        if self.scale is not None and self.scale.integers:
            self._check_superblock(self.scale)
        if self.element == INTEGER:
            if self.scale is not None and not self.scale.integers:
                raise RecipeError("The scales of an integer grid are floats or integers by superblock.")
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
        if self.scale is not None and not self.scale.integers and self.scale not in (POWERS_OF_TWO, FLOAT8_SCALES):
            raise RecipeError(
                "Scales lie on a grid of powers of two (element: e8m0, granularity: none), of FP8 with one scale a "
                "tensor (element: e4m3, granularity: tensor) or of integers by superblock (granularity: group), not on "
                f"{self.scale.label}."
            )

    def _check_superblock(self, scale: Grid) -> None:
        grouped = self.granularity == "group" == scale.granularity and scale.scale is None
        if not grouped or (scale.group_size or 0) % (self.group_size or 1):
            raise RecipeError(
                "Scales that are integers belong to weights by group, and lie by group themselves, of a multiple of "
                f"as many weights; not {scale.label} to {self.granularity} {self.group_size or ''}".rstrip()
                + "."
            )
        if scale.symmetric != self.symmetric:
            raise RecipeError("Scales that are integers have a sign where codes are symmetric, and only there.")
        element = self.float_element
        if element is not None and element.signed:
            raise RecipeError(f"The scales of {self.element} are not integers; leave out 'scale' or take iq4.")

    @property
    def rows_share_scales(self) -> bool:
        """Whether rows have scales in common, by blocks or all of them, and cannot be solved each for itself."""
        return self.granularity in ("block", "tensor")

    @property
    def float_element(self) -> Element | None:
        """The table of what codes stand for; ``None`` for integers."""
        return ELEMENTS.get(self.element)

    @property
    def integers(self) -> bool:
        """Whether codes are integers."""
        return self.element == INTEGER

    @property
    def plain(self) -> bool:
        """Whether codes are integers and scales floats, each for itself."""
        return self.integers and self.scale is None

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
    def widest_gap(self) -> float:
        """Scales between two numbers that follow each other, at most."""
        element = self.float_element
        values = () if element is None else element.values
        return max((above - below for below, above in pairwise(values)), default=1.0)

    @property
    def dynamic(self) -> bool:
        """Whether every scale of an activation is computed from the data at run time."""
        return self.granularity == "token" or (self.granularity == "group" and not self.tensor_scaled)

    @property
    def tensor_scaled(self) -> bool:
        """Whether scales have a scale in their turn: one for the tensor."""
        return self.scale is not None and self.scale.granularity == "tensor"

    @property
    def superblock(self) -> int | None:
        """Weights of a row that share a scale of their scales, where these are integers."""
        return self.scale.group_size if self.scale is not None and self.scale.integers else None

    @property
    def minimums(self) -> bool:
        """Whether groups have minimums, integers as the scales are, in the place of zeros."""
        return self.superblock is not None and not self.symmetric

    def divides(self, in_features: int) -> bool:
        """Whether rows of ``in_features`` inputs split into whole groups and superblocks; blocks may end early."""
        return self.granularity != "group" or in_features % (self.superblock or self.group_width(in_features)) == 0

    def group_width(self, in_features: int) -> int:
        """Inputs that share a scale in a row of ``in_features`` inputs."""
        return self.group_size or in_features

    def groups(self, in_features: int) -> int:
        """Number of scales per row."""
        return -(-in_features // self.group_width(in_features))

    def are_codes(self, zero: Tensor) -> bool:
        """Whether every zero is a code."""
        return bool(((zero == zero.round()) & (zero >= 0) & (zero <= self.code_max)).all())

    @property
    def label(self) -> str:
        """A short name such as ``4-g128`` or ``8-channel-asym``, without the letter of what it quantizes."""
        sized = {"group": f"g{self.group_size}", "block": f"b{self.group_size}"}
        grain = sized.get(self.granularity, self.granularity)
        if self.integers:
            scales = f"-s{self.scale.bits}" if self.scale else ""
            return f"{self.bits}-{grain}" + ("" if self.symmetric else "-asym") + scales
        return f"{self.element}-{grain}" + (f"-{self.scale.element}" if self.scale else "")

    @property
    def input_name(self) -> str:
        """What kernels call inputs on this grid, such as ``int8-token``; of float elements its label."""
        return f"int{self.bits}-{self.granularity}" if self.integers else self.label

    def described(self) -> dict[str, Any]:
        """The fields as checkpoints and reports write them: what only float elements have is left out of integers'."""
        fields: dict[str, Any] = {
            "bits": self.bits,
            "symmetric": self.symmetric,
            "granularity": self.granularity,
            "group_size": self.group_size,
        }
        if not self.integers or self.scale is not None:
            fields |= {"element": self.element, "scale": self.scale.described() if self.scale else None}
        return fields


POWERS_OF_TWO = Grid(element=E8M0, granularity="none")
"""The grid of MX scales."""

FLOAT8_SCALES = Grid(element="e4m3", granularity="tensor")
"""The grid of NVFP4's scales: FP8 over one float32 for the tensor."""
