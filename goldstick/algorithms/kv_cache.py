"""KV cache: keys and values as int8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from goldstick.algorithms.base import DataRequirement, Stage
from goldstick.core.kv_cache import KVGranularity, KVMode, KVRanges, KVScales, KVScheme, KVSettings, kv_scale
from goldstick.errors import QuantizationError


@dataclass(frozen=True, kw_only=True)
class KVCache(Stage):
    """Store keys and values as int8: x̂ = clamp(round(x / s), −127, 127) · s with s = max|x| / 127.

    Static scales come from calibration data, seen where the cache sees them: keys after rotary embedding. Keys have
    channels far larger than others, values have not (KIVI, arXiv 2402.02750), hence the defaults. A dynamic cache has
    a scale for each token and head and needs no data. No weight changes, so it goes with every weight stage.

    Attributes:
        mode: ``static`` or ``dynamic``.
        keys: What shares one static scale among the keys: ``channel`` (the default), ``head`` or ``tensor``.
        values: The same for the values; ``head`` by default. ``tensor`` for both is what other tools read.
        window: How many of the newest tokens stay in float.
        sinks: How many of the first tokens stay in float.
    """

    name: ClassVar[str] = "kv_cache"

    mode: KVMode = "static"
    keys: KVGranularity | None = None
    values: KVGranularity | None = None
    window: int = 0
    sinks: int = 0

    def __post_init__(self) -> None:
        _ = self.scheme  # which checks the options

    @property
    def data_requirement(self) -> DataRequirement:
        """Whether it looks at data: only static scales do."""
        return DataRequirement.BLOCKWISE if self.mode == "static" else DataRequirement.NONE

    @property
    def scheme(self) -> KVScheme:
        """How keys and values will be stored."""
        return KVScheme(
            mode=self.mode,
            keys=self.keys or ("channel" if self.mode == "static" else "head"),
            values=self.values or "head",
            window=self.window,
            sinks=self.sinks,
        )

    def solve(self, ranges: Mapping[int, KVRanges]) -> KVSettings:
        """The settings of the cache from what each layer's keys and values reached.

        Args:
            ranges: Layer index → its ranges; not looked at by a dynamic cache.

        Raises:
            QuantizationError: A range is not finite, or a static cache saw nothing.
        """
        scales: dict[int, KVScales] = {}
        if self.mode == "static":
            for layer, seen in sorted(ranges.items()):
                try:
                    keys, values = kv_scale(seen.keys, self.scheme.keys), kv_scale(seen.values, self.scheme.values)
                except QuantizationError as error:
                    raise QuantizationError(f"The KV cache of layer {layer} cannot be quantized: {error}") from error
                scales[layer] = KVScales(keys=keys, values=values)
        return KVSettings(scheme=self.scheme, scales=scales)
