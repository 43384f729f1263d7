"""RMSNorm and rounding to 8 bits as one torch operator, ``goldstick::rms_norm_quantize``.

The normalized tokens are never written to memory: one kernel reads a token and writes its codes and its scale.
"""

from __future__ import annotations

import os
from typing import cast

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.rounded_inputs import quantize_per_token
from goldstick.errors import KernelError
from goldstick.kernels import triton

_library = Library("goldstick", "FRAGMENT")
_library.define("rms_norm_quantize(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)")


def rms_norm_quantize(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Codes q and scales s of the RMSNorm n = (x / √(mean(x²) + ε)) · weight of every token: n ≈ q · s.

    Mean and root are taken in float32 and the two products rounded to x's dtype, as transformers does; q and s are
    those of ``fake_quantize_per_token``.

    Args:
        x: [..., in]; float32, float16 or bfloat16.
        weight: [in], in x's dtype.
        epsilon: ε.

    Returns:
        int8 [..., in], and [..., 1] in x's dtype: not a number where the token holds an infinity or what is no number.

    Raises:
        KernelError: Shapes or dtypes do not fit.
    """
    return cast(tuple[Tensor, Tensor], torch.ops.goldstick.rms_norm_quantize(x, weight, epsilon))


def _run(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    _check(x, weight)
    if os.environ.get("GOLDSTICK_BACKEND") == "triton" and triton.why_not_on(x.device) is None:
        return triton.rms_norm_quantize(x, weight, epsilon)
    x = x.contiguous()
    wide = x.float()
    unit = (wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon)).to(x.dtype)
    return quantize_per_token(unit * weight)


def _fake(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    _check(x, weight)
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(*x.shape[:-1], 1)


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise KernelError(f"a norm before 8 bits is computed in float32, float16 or bfloat16, not {x.dtype}")
    if x.ndim == 0 or x.shape[-1] == 0 or weight.shape != x.shape[-1:]:
        raise KernelError(
            f"a norm's weight of shape {list(weight.shape)} does not fit inputs of shape {list(x.shape)}: give one "
            "factor for each input feature"
        )
    if weight.dtype != x.dtype:
        raise KernelError(f"the norm's weight is {weight.dtype} and its input {x.dtype}: cast one of them")


_library.impl("rms_norm_quantize", _run, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::rms_norm_quantize", _fake, lib=_library)
