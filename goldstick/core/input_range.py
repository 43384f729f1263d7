"""The static range of a layer's input: one scale, and perhaps one zero, for every input it will ever be given."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import global_scale_for
from goldstick.errors import QuantizationError


def input_range(low: float, high: float, grid: Grid) -> tuple[Tensor, Tensor | None]:
    """Scale and zero of a static input grid from the least and the greatest value that were seen.

    The range is widened to contain 0. Codes are signed, q = clamp(round(x / s + z), −2^(b−1), 2^(b−1) − 1), and
    x̂ = (q − z) · s. Symmetric: s = max|x| / ((2^b − 1) / 2), which is max|x| / 127.5 at 8 bits, with the codes
    −128 … 127: the greatest positive value is clipped by half a step, as compressed-tensors does with its tokens and
    tensors, and as weights are. Asymmetric: s = (high − low) / (2^b − 1), z = −2^(b−1) − round(low / s), clamped to the
    codes. Of float elements: s = max|x| / the largest of them; of NVFP4, whose scales are found at run time, what those
    are divided by, 448 · 6 / max|x|. A range of nothing but 0 gets the scale 1.

    Args:
        low: The least value.
        high: The greatest value.
        grid: Bits and symmetry.

    Returns:
        The scale, float32 [], and the zero, int8 [], or ``None`` for a symmetric grid.

    Raises:
        QuantizationError: The values are not finite, are the wrong way round, or have a range too wide for float32.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise QuantizationError(f"Inputs from {low} to {high} have no range to quantize.")
    low, high = min(low, 0.0), max(high, 0.0)
    if grid.float_element is not None:
        largest = torch.tensor(max(-low, high), dtype=torch.float32)
        if grid.tensor_scaled:
            return global_scale_for(largest, grid), None
        scale = largest / grid.steps_to_end
        return torch.where(scale == 0, 1.0, scale.clamp(min=torch.finfo(torch.float32).tiny)), None
    width = 2 * max(-low, high) if grid.symmetric else high - low
    scale = torch.tensor(width / grid.code_max or 1.0, dtype=torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
    if not torch.isfinite(scale):
        raise QuantizationError(f"Inputs from {low} to {high} have a range too wide for float32.")
    if grid.symmetric:
        return scale, None
    zero = min(max(-grid.midpoint - round(low / float(scale)), -grid.midpoint), grid.midpoint - 1)
    return scale, torch.tensor(zero, dtype=torch.int8)


def check_input_range(scheme: Scheme, scale: Tensor | None, zero: Tensor | None) -> None:
    """Raise a QuantizationError unless the scale and zero of an input are what a scheme calls for: one value each."""
    shifted = scheme.static_input and scheme.activation is not None and not scheme.activation.symmetric
    if (scale is not None) != scheme.static_input or (zero is not None) != shifted:
        given = " and ".join(name for name, value in (("scale", scale), ("zero", zero)) if value is not None)
        wanted = "a scale and a zero" if shifted else "a scale and no zero" if scheme.static_input else "neither"
        raise QuantizationError(
            f"For its input, the scheme {scheme.label} takes {wanted}, and what was given is {given or 'neither'}. The "
            "range of a static input comes from calibration data."
        )
    if scale is not None and (scale.numel() != 1 or not scale.is_floating_point()):
        raise QuantizationError(f"The scale of an input is one float, not {scale.dtype} {tuple(scale.shape)}.")
    if zero is not None and (zero.numel() != 1 or zero.dtype != torch.int8):
        raise QuantizationError(f"The zero of an input is one int8, not {zero.dtype} {tuple(zero.shape)}.")
