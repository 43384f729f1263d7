"""How far a quantized weight lies from the one it stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import as_rows, row_chunks


@dataclass(frozen=True, kw_only=True)
class WeightError:
    """Error of a quantized weight; errors of its parts add up with ``+``.

    Attributes:
        signal: Σw².
        noise: Σ(w − ŵ)².
        max_abs: Largest |w − ŵ|.
    """

    signal: float
    noise: float
    max_abs: float

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise, 10·log₁₀(Σw² / Σ(w − ŵ)²), in decibels; ``None`` where there is no noise."""
        if self.noise == 0 or self.signal == 0:
            return None
        return 10 * math.log10(self.signal / self.noise)

    def __add__(self, other: WeightError) -> WeightError:
        return WeightError(
            signal=self.signal + other.signal,
            noise=self.noise + other.noise,
            max_abs=max(self.max_abs, other.max_abs),
        )


def weight_error(weight: Tensor, tensor: QuantizedTensor) -> WeightError:
    """Error of ``tensor`` against ``weight`` [..., out, in], in float64 sums over float32 differences."""
    rows = as_rows(weight)
    zero = None if tensor.zero is None else as_rows(tensor.zero)
    matrix = QuantizedTensor(codes=as_rows(tensor.codes), scale=as_rows(tensor.scale), zero=zero, grid=tensor.grid)
    total = WeightError(signal=0.0, noise=0.0, max_abs=0.0)
    for part in row_chunks(rows, copies=8):
        original = rows[part].float()
        difference = original - matrix.rows(part).dequantize().float()
        total += WeightError(
            signal=_exact_sum(original.square()),
            noise=_exact_sum(difference.square()),
            max_abs=float(difference.abs().max()) if difference.numel() else 0.0,
        )
    return total


def _exact_sum(rows: Tensor) -> float:
    """The sum of [rows, in], of the same bits at any number of threads: torch sums a row in one, and the rows' sums are
    added as if exactly."""
    return math.fsum(rows.sum(-1, dtype=torch.float64).flatten().tolist())
