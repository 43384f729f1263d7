"""Scheme: what a layer becomes (never how), with the names people write."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from reprlib import repr as shown
from typing import ClassVar, cast

from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO, SUPERBLOCK, Granularity, Grid
from goldstick.errors import RecipeError

_NAME = re.compile(
    r"w(?P<bits>[1-8])a(?:16|(?P<token>[84])-dynamic|8-(?P<static>static)(?P<shifted>-shifted)?)"
    r"(?:-(?:g(?P<group>[0-9]{1,9})|(?P<channel>channel)))?"
    r"(?:-(?P<asymmetric>asym))?"
)

#: A scheme of float grids without a name, as labels describe it.
_DESCRIBED = re.compile(r"w-(?P<weight>.+)-a-(?P<activation>.+)")
_GRID = re.compile(
    r"(?:(?P<bits>[1-8])|(?P<element>[a-z][a-z0-9]*))-(?:(?P<by>[gb])(?P<size>[0-9]{1,9})|(?P<grain>[a-z]+))"
    r"(?:-(?P<asymmetric>asym)|-(?P<scale>e8m0|e4m3))?"
)

#: Inputs with a scale for each token, found at run time, by their bits.
_PER_TOKEN = {bits: Grid(bits=bits, granularity="token") for bits in (8, 4)}

_FP8 = Grid(element="e4m3", granularity="channel")
_FP8_TENSOR = Grid(element="e4m3", granularity="tensor")
_FP8_TOKEN = Grid(element="e4m3", granularity="token")
_FP8_GROUP = Grid(element="e4m3", granularity="group", group_size=128)
_FP8_BLOCK = Grid(element="e4m3", granularity="block", group_size=128)


def _microscaled(element: str, bits: int) -> Grid:
    """Groups of 32 whose scales are powers of two (2310.10537)."""
    return Grid(element=element, bits=bits, granularity="group", group_size=32, scale=POWERS_OF_TWO)


def _superblocks(bits: int, width: int, scale_bits: int, *, minimums: bool = False, element: str = INTEGER) -> Grid:
    """Groups whose scales are integers times a float16 number for each 256 weights, as ggml has them."""
    scale = Grid(bits=scale_bits, symmetric=not minimums, granularity="group", group_size=SUPERBLOCK)
    return Grid(bits=bits, symmetric=not minimums, granularity="group", group_size=width, element=element, scale=scale)


_NVFP4 = Grid(element="e2m1", bits=4, granularity="group", group_size=16, scale=FLOAT8_SCALES)

#: Schemes with names of their own: their grids of weights and activations, and what help says of them.
NUMBER_FORMATS: dict[str, tuple[Grid, Grid | None, str]] = {
    "fp8": (_FP8_TENSOR, _FP8_TENSOR, "FP8 weights and activations, one scale a tensor, from data"),
    "fp8-dynamic": (_FP8, _FP8_TOKEN, "FP8 weights per channel, FP8 activations per token at run time"),
    "fp8-static": (_FP8, _FP8_TENSOR, "FP8 weights per channel, FP8 activations with one scale per tensor from data"),
    "fp8-block": (_FP8_BLOCK, _FP8_GROUP, "FP8 weights in blocks of 128 x 128, FP8 activations in groups of 128"),
    "fp8a16": (_FP8, None, "FP8 weights per channel"),
    "fp8a16-block": (_FP8_BLOCK, None, "FP8 weights in blocks of 128 x 128"),
    "mxfp8": (_microscaled("e4m3", 8), _microscaled("e4m3", 8), "MXFP8 weights and activations"),
    "mxfp8a16": (_microscaled("e4m3", 8), None, "MXFP8 weights"),
    "mxfp6a16": (_microscaled("e2m3", 6), None, "MXFP6 weights (E2M3)"),
    "mxfp4": (_microscaled("e2m1", 4), _microscaled("e2m1", 4), "MXFP4 weights and activations"),
    "mxfp4a16": (_microscaled("e2m1", 4), None, "MXFP4 weights"),
    "mxfp4afp8": (_microscaled("e2m1", 4), _FP8_GROUP, "MXFP4 weights, FP8 activations in groups of 128"),
    "nvfp4": (_NVFP4, _NVFP4, "NVFP4 weights and activations, whose scale of scales comes from data"),
    "nvfp4a16": (_NVFP4, None, "NVFP4 weights"),
    "w4afp8": (
        Grid(bits=4, granularity="group", group_size=128), _FP8_TOKEN,
        "4-bit integer weights in groups of 128, FP8 activations per token at run time",
    ),
    "nf4a16": (Grid(element="nf4", bits=4, granularity="group", group_size=64), None, "NF4 weights, groups of 64"),
    "iq4a16": (Grid(element="iq4", bits=4, granularity="group", group_size=32), None, "IQ4 weights, groups of 32"),
    "q2_k": (_superblocks(2, 16, 4, minimums=True), None, "2-bit K-quant weights, 2.6 bits with their scales"),
    "q3_k": (_superblocks(3, 16, 6), None, "3-bit K-quant weights, 3.4 bits with their scales"),
    "q4_k": (_superblocks(4, 32, 6, minimums=True), None, "4-bit K-quant weights, 4.5 bits with their scales"),
    "q5_k": (_superblocks(5, 32, 6, minimums=True), None, "5-bit K-quant weights, 5.5 bits with their scales"),
    "q6_k": (_superblocks(6, 16, 8), None, "6-bit K-quant weights, 6.6 bits with their scales"),
    "iq4_xs": (_superblocks(4, 32, 6, element="iq4"), None, "IQ4 weights, 4.25 bits with their scales"),
}  # fmt: skip

#: Block types of ggml that are schemes with names of their own.
BLOCK_NAMES = {
    "q4_0": "w4a16-g32", "q4_1": "w4a16-g32-asym", "q5_0": "w5a16-g32", "q5_1": "w5a16-g32-asym", "q8_0": "w8a16-g32",
    "iq4_nl": "iq4a16",
}  # fmt: skip

#: The grids of inputs with float elements, by the name that kernels know them by.
FLOAT_INPUTS: dict[str, Grid] = {grid.input_name: grid for _, grid, _ in NUMBER_FORMATS.values() if grid}

#: The names that help and error texts offer; any ``w<bits>a16-g<size>`` of this pattern is understood.
PRESETS: dict[str, str] = {
    "w8a16": "8-bit weights, one scale per output channel",
    "w8a16-g128": "8-bit weights, groups of 128",
    "w8a8-dynamic": "8-bit weights per channel, 8-bit activations per token at run time",
    "w8a8-static": "8-bit weights per channel, 8-bit activations with one scale per tensor from data",
    "w4a8-dynamic-g32": "4-bit weights, groups of 32, 8-bit activations per token at run time",
    "w4a8-dynamic-g64": "4-bit weights, groups of 64, 8-bit activations per token at run time",
    "w4a8-dynamic-g128": "4-bit weights, groups of 128, 8-bit activations per token at run time",
    "w4a8-dynamic-channel": "4-bit weights per channel, 8-bit activations per token at run time",
    "w4a8-static-g128": "4-bit weights, groups of 128, 8-bit activations with one scale per tensor from data",
    "w4a4-dynamic-g32": "4-bit weights, groups of 32, 4-bit activations per token at run time",
    "w4a4-dynamic-g128": "4-bit weights, groups of 128, 4-bit activations per token at run time",
    "w4a4-dynamic-channel": "4-bit weights per channel, 4-bit activations per token at run time",
    "w4a16-g32": "4-bit weights, groups of 32",
    "w4a16-g64": "4-bit weights, groups of 64",
    "w4a16-g128": "4-bit weights, groups of 128",
    "w4a16-channel": "4-bit weights, one scale per output channel",
    "w4a16-g32-asym": "4-bit weights, groups of 32, asymmetric",
    "w4a16-g64-asym": "4-bit weights, groups of 64, asymmetric",
    "w4a16-g128-asym": "4-bit weights, groups of 128, asymmetric",
    "w3a16-g32": "3-bit weights, groups of 32",
    "w3a16-g64": "3-bit weights, groups of 64",
    "w3a16-g128": "3-bit weights, groups of 128",
    "w3a16-g128-asym": "3-bit weights, groups of 128, asymmetric",
    "w3a16-channel": "3-bit weights, one scale per output channel",
    "w2a16-g32": "2-bit weights, groups of 32",
    "w2a16-g64": "2-bit weights, groups of 64",
    "w2a16-g64-asym": "2-bit weights, groups of 64, asymmetric",
    "w2a16-g128": "2-bit weights, groups of 128",
    "w2a16-channel": "2-bit weights, one scale per output channel",
    **{name: described for name, (_, _, described) in NUMBER_FORMATS.items()},
}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a layer becomes: the grid of its weight and, where it has one, of its input activations.

    Attributes:
        weight: Grid of the weight.
        activation: Grid of the layer's input, or ``None`` for float activations.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    weight: Grid
    activation: Grid | None = None

    def __post_init__(self) -> None:
        if self.weight.granularity in ("token", "none") or (
            self.weight.granularity == "tensor" and self.weight.integers
        ):
            raise RecipeError(
                f"A weight has no scale per {self.weight.granularity}: its granularity is channel or group."
            )
        known = (*_PER_TOKEN.values(), _per_tensor(symmetric=True), _per_tensor(symmetric=False))
        if self.activation is not None and self.activation not in (*known, *FLOAT_INPUTS.values()):
            raise RecipeError(
                "Activations are quantized to 8 or 4 bits, symmetric and per token at run time (bits: 8, symmetric: "
                "true, granularity: token), to 8 with one static scale (bits: 8, granularity: tensor), or as those of "
                f"{', '.join(name for name, (_, grid, _) in NUMBER_FORMATS.items() if grid)}, "
                f"not as {self.activation.label}."
            )

    @staticmethod
    def may_be(name: str) -> bool:
        """Whether a name is spelled as one of a scheme; :meth:`parse` may still find bits or groups that none has."""
        return name in BLOCK_NAMES or name in NUMBER_FORMATS or _NAME.fullmatch(name) is not None

    @classmethod
    def parse(cls, name: str) -> Scheme:
        """The scheme of a name such as ``w4a16-g128``, ``w3a16-channel-asym`` or ``w8a8-dynamic``.

        What follows ``a8`` says when the input's scales are found: ``dynamic``, for each token at run time, or
        ``static``, one for all from calibration data; ``static-shifted`` has a zero of its own. After ``a4`` it is
        ``dynamic``. Then comes the grain of the weight, and ``-asym`` at the end always means an asymmetric weight.

        Raises:
            RecipeError: The name is no scheme; the message gives the nearest ones.
        """
        name = BLOCK_NAMES.get(name, name)
        if name in NUMBER_FORMATS:
            weight, activation, _ = NUMBER_FORMATS[name]
            return cls(weight=weight, activation=activation)
        match = _NAME.fullmatch(name)
        if match is None:
            near = difflib.get_close_matches(name[:100], PRESETS, n=3, cutoff=0.4)
            raise RecipeError(
                f"No scheme is called {shown(name)}. "
                + (f"Near it: {', '.join(near)}. " if near else "")
                + "A name reads w<bits>a16-g<group size>, w<bits>a16-channel, w8a8-dynamic or w8a8-static (other bits "
                "and groups likewise), then -asym for an asymmetric weight."
            )
        group = None if match["group"] is None else int(match["group"])
        weight = Grid(
            bits=int(match["bits"]),
            symmetric=match["asymmetric"] is None,
            granularity="channel" if group is None else "group",
            group_size=group,
        )
        activation = None
        if match["token"]:
            activation = _PER_TOKEN[int(match["token"])]
        elif match["static"]:
            activation = _per_tensor(symmetric=match["shifted"] is None)
        return cls(weight=weight, activation=activation)

    @classmethod
    def of_label(cls, label: str) -> Scheme:
        """The scheme of a :attr:`label`, which of float grids without a name is no name that :meth:`parse` takes.

        Raises:
            RecipeError: It is no label, or one of superblocks without a name, which it does not say all of.
        """
        match = _DESCRIBED.fullmatch(label)
        if match is None:
            return cls.parse(label)
        activation = None if match["activation"] == "16" else _described_grid(match["activation"])
        return cls(weight=_described_grid(match["weight"]), activation=activation)

    @property
    def static_input(self) -> bool:
        """Whether the input is quantized with a range fixed beforehand, which takes data to find."""
        return self.activation is not None and not self.activation.dynamic

    @property
    def floats(self) -> bool:
        """Whether codes of weights or of activations stand for floats."""
        return not (self.weight.integers and (self.activation is None or self.activation.integers))

    @property
    def label(self) -> str:
        """The name of the scheme, as :meth:`parse` understands it; of float grids that have no name a description."""
        for name, (weight, grid, _) in NUMBER_FORMATS.items():
            if (weight, grid) == (self.weight, self.activation):
                return name
        if self.floats:
            return f"w-{self.weight.label}-a-{self.activation.label if self.activation else '16'}"
        activation = "16"
        if self.activation:
            shifted = "" if self.activation.symmetric else "-shifted"
            activation = f"{self.activation.bits}-{'dynamic' if self.activation.dynamic else f'static{shifted}'}"
        return f"w{self.weight.bits}a{activation}" + self.weight.label.removeprefix(str(self.weight.bits))


def _described_grid(label: str) -> Grid:
    match = _GRID.fullmatch(label)
    element = ELEMENTS.get(match["element"]) if match and match["element"] else None
    if match is None or (element is None and match["bits"] is None):
        raise RecipeError(f"No grid is described by {shown(label)}.")
    return Grid(
        element=element.name if element else INTEGER,
        bits=element.bits if element else int(match["bits"]),
        symmetric=match["asymmetric"] is None,
        granularity=cast(Granularity, {"g": "group", "b": "block"}.get(match["by"] or "", match["grain"] or "")),
        group_size=int(match["size"]) if match["size"] else None,
        scale={"e8m0": POWERS_OF_TWO, "e4m3": FLOAT8_SCALES}.get(match["scale"] or ""),
    )


def _per_tensor(*, symmetric: bool) -> Grid:
    return Grid(bits=8, symmetric=symmetric, granularity="tensor")
