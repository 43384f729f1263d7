"""What a quantized cache of keys and values is: its scheme, the ranges seen, the scales made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from goldstick.errors import QuantizationError, RecipeError

KVMode = Literal["static", "dynamic"]
KVGranularity = Literal["channel", "head", "tensor"]
KVDtype = Literal["int8", "fp8", "int4"]

#: The largest number a code stands for before it is scaled. Of int8 the grid is −127 … 127, symmetric, so that a sign
#: change changes codes by their sign alone; FP8 is E4M3. Codes of int4 count steps from a minimum on.
CODE_MAX: Mapping[KVDtype, int] = {"int8": 127, "fp8": 448, "int4": 15}


@dataclass(frozen=True, kw_only=True)
class KVScheme:
    """How keys and values are stored.

    Attributes:
        dtype: What codes are: ``int8``, ``fp8`` (E4M3), or ``int4``.
        mode: ``static``: scales from calibration data. ``dynamic``: a scale for each token and head, from the token; of
            int4 a minimum, too.
        keys: What shares one scale among the keys: a ``channel`` of a head, a ``head``, or the whole ``tensor``.
        values: The same for the values. A dynamic cache has ``head`` for both.
        window: How many of the newest tokens stay in float.
        sinks: How many of the first tokens stay in float.
        rotate: Whether keys and values of int4 are turned by a Hadamard transform before they are rounded, and back
            when they are read.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    dtype: KVDtype = "int8"
    mode: KVMode = "static"
    keys: KVGranularity = "channel"
    values: KVGranularity = "head"
    window: int = 0
    sinks: int = 0
    rotate: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in CODE_MAX:
            raise RecipeError(f"A KV cache holds {' or '.join(CODE_MAX)}, not {self.dtype!r}.")
        if self.dtype == "int4" and self.mode == "static":
            raise RecipeError(
                "A KV cache in int4 has a step and a minimum for each token and head: mode is dynamic. Leave mode out."
            )
        if self.rotate and self.dtype != "int4":
            raise RecipeError(f"rotate is for a KV cache in int4; in {self.dtype} it would gain nothing.")
        if self.mode not in ("static", "dynamic"):
            raise RecipeError(f"A KV cache is static or dynamic, not {self.mode!r}.")
        for name, granularity in (("keys", self.keys), ("values", self.values)):
            if granularity not in ("channel", "head", "tensor"):
                raise RecipeError(f"{name} of a KV cache share scales by channel, head or tensor, not {granularity!r}.")
            if self.mode == "dynamic" and granularity != "head":
                raise RecipeError(
                    f"A dynamic KV cache has one scale for each token and head, so {name} cannot be {granularity!r}; "
                    f"leave {name} out, or use mode: static."
                )
        for name, tokens in (("window", self.window), ("sinks", self.sinks)):
            if tokens < 0:
                raise RecipeError(f"{name} counts tokens of the KV cache that stay in float; {tokens} is below zero.")

    @property
    def label(self) -> str:
        """A short name, such as ``kv8-channel-head``, ``kv8-dynamic``, ``kvfp8-tensor-tensor`` or ``kv4-rotated``."""
        name = f"kv{self.dtype.removeprefix('int')}"
        parts = [name, "dynamic"] if self.mode == "dynamic" else [name, self.keys, self.values]
        if self.dtype == "int4":  # which has no other mode
            parts = [name, *["rotated"][: self.rotate]]
        parts += [f"{name}{tokens}" for name, tokens in (("window", self.window), ("sinks", self.sinks)) if tokens]
        return "-".join(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class KVRanges:
    """Largest magnitudes that one layer's keys and values reached.

    Attributes:
        keys: max|K| over batch and tokens, float32 [kv_heads, key channels].
        values: max|V|, float32 [kv_heads, value channels].
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class KVScales:
    """Scales of one layer, float32; an axis that shares one scale has length 1.

    Attributes:
        keys: [kv_heads or 1, channels or 1].
        values: [kv_heads or 1, channels or 1].
    """

    keys: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        for name, scale in (("keys", self.keys), ("values", self.values)):
            if scale.dtype is not torch.float32 or scale.ndim != 2:
                raise QuantizationError(
                    f"Scales of {name} are float32 [heads or 1, channels or 1], not {scale.dtype} {tuple(scale.shape)}."
                )
            if not bool((torch.isfinite(scale) & (scale > 0)).all()):
                raise QuantizationError(f"Scales of {name} must be positive and finite; calibrate the KV cache again.")


@dataclass(frozen=True, kw_only=True, eq=False)
class KVSettings:
    """Everything a quantized cache is made from.

    Attributes:
        scheme: How keys and values are stored.
        scales: Layer index → its scales; empty for a dynamic cache.
    """

    scheme: KVScheme
    scales: Mapping[int, KVScales]

    def __post_init__(self) -> None:
        if self.scheme.mode == "static" and not self.scales:
            raise QuantizationError("A static KV cache needs scales, and there are none: show it calibration data.")
        if self.scheme.mode == "dynamic" and self.scales:
            raise QuantizationError("A dynamic KV cache makes its scales from each token; it cannot be given any.")


def kv_scale(largest: Tensor, granularity: KVGranularity, dtype: KVDtype = "int8") -> Tensor:
    """Symmetric scales from ranges: s = max|x| / the largest code over what shares it; 1 where everything was 0.

    Args:
        largest: max|x| by channel, [kv_heads, channels].
        granularity: What shares one scale.
        dtype: What codes are.

    Returns:
        float32 [kv_heads or 1, channels or 1].

    Raises:
        QuantizationError: A range is NaN or infinite.
    """
    if not bool(torch.isfinite(largest).all()):
        raise QuantizationError("a range is NaN or infinite; the model overflows on its calibration data.")
    shared = largest.to(torch.float32)
    if granularity in ("head", "tensor"):
        shared = shared.amax(dim=-1, keepdim=True)  # [heads, 1]
    if granularity == "tensor":
        shared = shared.amax(dim=0, keepdim=True)  # [1, 1]
    scale = shared / CODE_MAX[dtype]
    return torch.where(scale > 0, scale, torch.ones_like(scale))
