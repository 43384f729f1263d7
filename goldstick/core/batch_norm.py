"""A batch norm in evaluation as a gain and a shift of each channel."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def gain_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """g = γ / √(σ² + ε) and β − μ · g, float64 [channels], of y = x · g + (β − μ · g) (arXiv 1502.03167)."""
    gain: Tensor = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        gain = gain * norm.weight.double()
    shift: Tensor = -norm.running_mean.double() * gain
    return gain, shift if norm.bias is None else shift + norm.bias.double()
