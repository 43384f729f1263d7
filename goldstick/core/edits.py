"""Edits: what algorithms decide. Plain data; the surgeon applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from goldstick.core.hadamard import Rotation
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """Replace the weight of a site by a quantized one.

    Attributes:
        site: Name of the site (``Site.name``).
        scheme: What the layer becomes.
        tensor: The codes, [..., out, in].
        algorithm: Name of the algorithm that decided it, for the report.
        notes: What the algorithm found out on the way (damping, tokens, why it fell back), for the report.
        input_scale: The scale of the layer's input, float32 [], where the scheme's activation grid is static.
        input_zero: Its zero among the signed codes, int8 [], where that grid is asymmetric.
        input_multiplier: What the layer's input is multiplied by first, [in], or ``None``; ``tensor`` makes up for it.
    """

    site: str
    scheme: Scheme
    tensor: QuantizedTensor
    algorithm: str
    notes: Mapping[str, float | str] = field(default_factory=dict)
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None
    input_multiplier: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SetWeight:
    """Replace the float weight of a site by another of the same shape.

    Attributes:
        site: Name of the site.
        weight: float [..., out, in], the canonical matrix view.
    """

    site: str
    weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Move a per-channel scale from a producer into its consumers, leaving the block's output as it was.

    The producer's output channels are divided by ``scale`` and the consumers' input columns multiplied by it.

    Attributes:
        producer: Path of the module whose output channels are divided (a norm or a linear).
        consumers: Names of the sites whose columns are multiplied.
        scale: float [channels].
        first_channel: Where the scaled channels begin among the producer's outputs, for fused producers.
        unit_offset: Whether the producer multiplies by 1 + weight (Gemma's norm) instead of by its weight.
    """

    producer: str
    consumers: tuple[str, ...]
    scale: Tensor
    first_channel: int = 0
    unit_offset: bool = False

    def divide(self, rows: Tensor) -> Tensor:
        """What becomes of a linear producer's weight, or of its scales, [out, ...]: its channels divided."""
        channels = slice(self.first_channel, self.first_channel + self.scale.numel())
        divided = rows.clone()
        divided[channels] = (rows[channels].float() / self.scale.to(rows.device).unsqueeze(-1)).to(rows.dtype)
        return divided


@dataclass(frozen=True, kw_only=True)
class RotateWeight:
    """Turn what one matrix reads, or what it puts out, by a rotation Q.

    ``input``: W ← W·Q, or W·diag(g)·Q where the gain g of a norm moves in first. ``output``: W ← Qᵀ·W and b ← b·Q; the
    rows of an embedding, which are outputs themselves, become E·Q.

    Attributes:
        parameter: Full name of the parameter that stores the matrix.
        side: Which side of it.
        rotation: Q; several blocks of it side by side where there are more channels.
        norm: Path of a norm in the same :class:`Rotate` whose gain moves into the columns; ``None`` for none.
        first_channel: Where the turned channels begin, for fused projections.
        channels: How many are turned; ``None`` for all from there on.
    """

    parameter: str
    side: Literal["input", "output"]
    rotation: Rotation
    norm: str | None = None
    first_channel: int = 0
    channels: int | None = None


@dataclass(frozen=True, kw_only=True)
class RotateInput:
    """Let a layer turn what it is given at run time, by the transform of :mod:`goldstick.core.input_rotation`.

    W ← W·H/√n at once, so that the layer gives what it did.

    Attributes:
        parameter: Full name of the layer's weight.
        size: n, a power of two that divides its inputs.
    """

    parameter: str
    size: int


@dataclass(frozen=True, kw_only=True)
class FuseNorm:
    """Set the gain g of a norm to 1, because its readers took it over, and its shift to (b / g)·Q.

    Attributes:
        norm: Path of the norm.
        rotation: Q of what the norm now receives.
        unit_offset: Whether it multiplies by 1 + weight.
    """

    norm: str
    rotation: Rotation
    unit_offset: bool = False


@dataclass(frozen=True, kw_only=True)
class Rotate:
    """The rotation of one block, or of what lies outside the blocks: only all of it together keeps the output.

    Attributes:
        turns: The matrices.
        norms: The norms whose gains move into them.
        unties: Parameters that are tied to another and get their own memory first.
        inputs: The layers that turn their input when they run.
    """

    turns: tuple[RotateWeight, ...]
    norms: tuple[FuseNorm, ...] = ()
    unties: tuple[str, ...] = ()
    inputs: tuple[RotateInput, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What stays of one side of a module when channels are cut.

    Attributes:
        module: Path of a linear layer, a convolution or a batch norm.
        side: ``output``: rows, bias, a norm's numbers; ``input``: columns.
        kept: The channels that stay, ascending.
        width: How many there were.
    """

    module: str
    side: Literal["input", "output"]
    kept: tuple[int, ...]
    width: int


@dataclass(frozen=True, kw_only=True)
class Prune:
    """Cut channels out of a network, physically; only all the slices together keep it running.

    Attributes:
        slices: What stays of which modules, at most one slice for each side of a module.
        scattered: Paths of batch norms among them that go on giving their old width, zeros in the place of what is
            cut: something else is added to their output.
    """

    slices: tuple[Slice, ...]
    scattered: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint's config."""
        slices = [
            {"module": one.module, "side": one.side, "kept": list(one.kept), "width": one.width} for one in self.slices
        ]
        return {"slices": slices, "scattered": list(self.scattered)}


@dataclass(frozen=True, kw_only=True)
class FoldNorm:
    """Let a convolution take over the batch norm behind it, which goes.

    Attributes:
        convolution: Path of the convolution; it gets a bias where it has none.
        norm: Path of the norm, in whose place an identity stays.
    """

    convolution: str
    norm: str

    def to_dict(self) -> dict[str, str]:
        """Plain data for a checkpoint's config."""
        return {"convolution": self.convolution, "norm": self.norm}


Edit = Quantize | SetWeight | Fold | Rotate | Prune | FoldNorm
