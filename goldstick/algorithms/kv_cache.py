"""KV cache: keys and values as int8, FP8 or int4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from goldstick.algorithms.stage import CacheQuantizer, DataRequirement
from goldstick.core.kv_cache import KVDtype, KVGranularity, KVMode, KVRanges, KVScales, KVScheme, KVSettings, kv_scale
from goldstick.errors import QuantizationError

#: What shares scales of keys and of values where nothing is said: of static int8 and FP8, and of a dynamic cache.
_DEFAULTS: Mapping[str, tuple[KVGranularity, KVGranularity]] = {
    "int8": ("channel", "head"),
    "fp8": ("tensor", "tensor"),
    "dynamic": ("head", "head"),
}


@dataclass(frozen=True, kw_only=True)
class KVCache(CacheQuantizer):
    """Store keys and values as int8: x̂ = clamp(round(x / s), −127, 127) · s with s = max|x| / 127; or as FP8 (E4M3),
    to whose nearest number x / s is rounded, with s = max|x| / 448; or as int4: x̂ = round((x − low) / s) · s + low with
    s = (high − low) / 15, for the ends of each token and head.

    Static scales come from calibration data, seen where the cache sees them: keys after rotary embedding. Keys have
    channels far larger than others, values have not (KIVI, arXiv 2402.02750), hence the defaults. A dynamic cache has
    a scale for each token and head and needs no data. No weight changes, so it goes with every weight stage.

    Attributes:
        dtype: ``int8``, ``fp8`` or ``int4``.
        mode: ``static`` or ``dynamic``; by default static, of int4 dynamic.
        keys: What shares one static scale among the keys: ``channel`` (the default of int8), ``head`` or ``tensor``
            (that of fp8).
        values: The same for the values; ``head`` by default, of fp8 ``tensor``. ``tensor`` for both is what other tools
            read.
        window: How many of the newest tokens stay in float.
        sinks: How many of the first tokens stay in float.
        rotate: Whether what int4 holds is turned by a Hadamard transform of a head's channels (QuaRot, arXiv
            2404.00456), and back when it is read.
    """

    name: ClassVar[str] = "kv_cache"

    dtype: KVDtype = "int8"
    mode: KVMode | None = None
    keys: KVGranularity | None = None
    values: KVGranularity | None = None
    window: int = 0
    sinks: int = 0
    rotate: bool = False

    def __post_init__(self) -> None:
        _ = self.scheme  # which checks the options

    @property
    def data_requirement(self) -> DataRequirement:
        """Whether it looks at data: only static scales do."""
        return DataRequirement.BLOCKWISE if self.scheme.mode == "static" else DataRequirement.NONE

    @property
    def scheme(self) -> KVScheme:
        """How keys and values will be stored."""
        mode = self.mode or ("dynamic" if self.dtype == "int4" else "static")
        keys, values = _DEFAULTS.get(self.dtype if mode == "static" else mode, _DEFAULTS["dynamic"])
        return KVScheme(
            dtype=self.dtype,
            mode=mode,
            keys=self.keys or keys,
            values=self.values or values,
            window=self.window,
            sinks=self.sinks,
            rotate=self.rotate,
        )

    def solve(self, ranges: Mapping[int, KVRanges]) -> KVSettings:
        """The settings of the cache from what each layer's keys and values reached.

        Args:
            ranges: Layer index → its ranges; not looked at by a dynamic cache.

        Raises:
            QuantizationError: A range is not finite, or a static cache saw nothing.
        """
        scales: dict[int, KVScales] = {}
        if self.scheme.mode == "static":
            for layer, seen in sorted(ranges.items()):
                try:
                    keys = kv_scale(seen.keys, self.scheme.keys, self.dtype)
                    values = kv_scale(seen.values, self.scheme.values, self.dtype)
                except QuantizationError as error:
                    raise QuantizationError(f"The KV cache of layer {layer} cannot be quantized: {error}") from error
                scales[layer] = KVScales(keys=keys, values=values)
        return KVSettings(scheme=self.scheme, scales=scales)
