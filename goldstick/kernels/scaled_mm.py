"""The GPU backend of FP8 layers: torch's own product of E4M3 codes, with a scale for each token and each row."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor

from goldstick.core.element import ELEMENTS
from goldstick.core.float_inputs import float_codes
from goldstick.core.scheme import FLOAT_INPUTS
from goldstick.kernels.base import WeightSpec, check_input, check_weight
from goldstick.kernels.reference import ReferenceBackend

_ELEMENT = "e4m3"

_OLDEST_CAPABILITY = (8, 9)
"""NVIDIA's devices multiply FP8 from here on."""

_WHOLE = 16
"""Rows and columns of a weight come in such numbers there."""


class ScaledMmBackend(ReferenceBackend):
    """``torch._scaled_mm``: codes are multiplied as they are, and their sums by the scales of token and row.

    y = (Σ value(q) · value(u)) · (input scale · weight scale) + bias, where the reference rounds value · scale to the
    layer's dtype first: the results are as near to the exact ones, and not the same bits.
    """

    name = "scaled-mm"

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """Bfloat16 layers of FP8 by channel and by token or tensor, on CUDA, or on the CPU if asked for by name."""
        grid = FLOAT_INPUTS.get(spec.activation or "")
        if spec.element != _ELEMENT or grid is None or grid.element != _ELEMENT:
            return "it multiplies FP8 (E4M3) weights and FP8 inputs"
        if spec.groups != 1 or grid.granularity not in ("token", "tensor"):
            return "it takes one scale for each row of a weight, and one for each token or for all"
        if spec.dtype != torch.bfloat16:
            return f"with scales by row it computes in bfloat16, not in {spec.dtype}"
        if spec.in_features % _WHOLE or spec.out_features % _WHOLE:
            return f"sizes are multiples of {_WHOLE} there, {spec.out_features} x {spec.in_features} are not"
        if device.type == "cuda":
            return _why_not_on_cuda(device)
        if device.type != "cpu" or os.environ.get("GOLDSTICK_BACKEND") != self.name:
            return f"it runs on CUDA devices, not on {device.type}"
        return None

    def linear(
        self,
        x: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        spec: WeightSpec,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """Round the input to codes, and multiply them."""
        check_input(x, bias, spec, input_scale, input_zero)
        check_weight(packed, scale, zero, spec, global_scale)
        tokens = x.detach().reshape(-1, spec.in_features)
        codes, steps = float_codes(tokens, FLOAT_INPUTS[spec.activation or ""], input_scale)
        dtype = ELEMENTS[_ELEMENT].dtype
        assert dtype is not None
        y = torch._scaled_mm(
            codes.view(dtype),
            packed.detach().contiguous().view(torch.uint8).view(dtype).t(),
            steps.float().expand(len(tokens), 1).contiguous(),
            scale.detach().float().t().contiguous(),
            bias=None if bias is None else bias.detach(),
            out_dtype=spec.dtype,
        )
        return y.reshape(*x.shape[:-1], spec.out_features)


@lru_cache
def _why_not_on_cuda(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device is here"
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (_OLDEST_CAPABILITY, capability))
        return f"it needs compute capability {needed}, not {found}"
    return "it was written for NVIDIA's devices and never tried on others" if torch.version.hip else None
