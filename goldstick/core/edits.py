"""Edits: what algorithms decide. Plain data; the surgeon applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

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
    """

    site: str
    scheme: Scheme
    tensor: QuantizedTensor
    algorithm: str
    notes: Mapping[str, float | str] = field(default_factory=dict)
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None


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


Edit = Quantize | SetWeight | Fold
