"""How far a quantized weight lies from the one it stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import as_rows, row_chunks

WORST = 3
"""Output channels of a weight that are named for their error."""


@dataclass(frozen=True, kw_only=True)
class WeightError:
    """Error of a quantized weight; errors of its parts add up with ``+``.

    Attributes:
        signal: Σw².
        noise: Σ(w − ŵ)².
        max_abs: Largest |w − ŵ|.
        worst: The output channels of the least ratio of signal to noise, the worst first: (which one, in decibels).
            Channels of zeros, and those without noise, are none of them.
    """

    signal: float
    noise: float
    max_abs: float
    worst: Sequence[tuple[str, float]] = ()

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise, 10·log₁₀(Σw² / Σ(w − ŵ)²), in decibels; ``None`` where there is no noise."""
        if self.noise == 0 or self.signal == 0:
            return None
        return _decibels(self.signal / self.noise)

    def of_part(self, name: str) -> WeightError:
        """The same, with channels named as those of a part of the weight."""
        return replace(self, worst=tuple((f"{name}, {channel}", decibels) for channel, decibels in self.worst))

    def __add__(self, other: WeightError) -> WeightError:
        return WeightError(
            signal=self.signal + other.signal,
            noise=self.noise + other.noise,
            max_abs=max(self.max_abs, other.max_abs),
            worst=tuple(sorted([*self.worst, *other.worst], key=lambda found: found[1])[:WORST]),
        )


def weight_error(weight: Tensor, tensor: QuantizedTensor) -> WeightError:
    """Error of ``tensor`` against ``weight`` [..., out, in], in float64 sums over float32 differences."""
    rows = as_rows(weight)
    matrix = tensor.flattened()
    height = weight.shape[-2] if weight.ndim > 2 else None
    total = WeightError(signal=0.0, noise=0.0, max_abs=0.0)
    for part in row_chunks(rows, copies=8):
        original = rows[part].float()
        difference = original - matrix.rows(part).dequantize().float()
        # The same bits at any number of threads: torch sums a row in one, and the rows' sums are added as if exactly.
        signal, noise = (values.square().sum(-1, dtype=torch.float64).cpu() for values in (original, difference))
        total += WeightError(
            signal=math.fsum(signal.tolist()),
            noise=math.fsum(noise.tolist()),
            max_abs=float(difference.abs().max()) if difference.numel() else 0.0,
            worst=_worst(signal, noise, part.start, height),
        )
    return total


def _worst(signal: Tensor, noise: Tensor, first: int, height: int | None) -> tuple[tuple[str, float], ...]:
    """The rows of the least ratio; the first one is number ``first`` of a matrix, or of several of ``height`` rows."""
    ratio = torch.where((signal > 0) & (noise > 0), signal / noise, torch.inf)
    found = []
    for row in ratio.argsort(stable=True)[:WORST].tolist():
        if math.isfinite(ratio[row]):
            place = first + row
            name = str(place) if height is None else f"matrix {place // height}, {place % height}"
            found.append((name, _decibels(float(ratio[row]))))
    return tuple(found)


def _decibels(ratio: float) -> float:
    """10·log₁₀ of a ratio; of 0, which infinite noise gives, −∞."""
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf
