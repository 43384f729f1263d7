"""Floats of 16 bits in C++: every one of them is read, rounded to and stored as torch does it."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.kernels import cpu
from goldstick.kernels.fused import gated_silu
from goldstick.kernels.rotary import rotate_into

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

both = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True, params=["scalar", ""], ids=["scalar", "best"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", request.param)


def every(dtype: torch.dtype) -> Tensor:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have the same bits, or are no numbers in the same places."""
    equal = found.view(torch.int16) == expected.view(torch.int16)
    return bool((equal | (found.isnan() & expected.isnan())).all())


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Two channels of one head for each entry."""
    keys = torch.zeros(len(x), 1, 1, 2, dtype=x.dtype)
    queries = torch.stack([x, x.flip(0), x, x, x, x], dim=-1).view(len(x), 1, 6)
    return rotate_into(queries, cos, sin, keys, keys.clone(), 1).view(len(x), 2)


@both
def test_each_is_read_and_stored_again(dtype: torch.dtype) -> None:
    x = every(dtype)
    x = x[x.isfinite()]
    one = torch.ones(1, 1, 2, dtype=dtype)
    found = rotated(x, one, torch.zeros_like(one))
    assert torch.equal(found, torch.stack([x, x.flip(0)], dim=-1))


@both
def test_products_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    scale = every(dtype)[:, None]
    codes = torch.tensor([[0, 1, 2, 3, 5, 129, 201, 255, 254, 85]], dtype=torch.uint8).repeat(len(scale), 1)
    out = torch.empty(codes.shape, dtype=dtype)
    zero = torch.full_like(scale, 127.0)
    stored = [cpu._as_stored(one) for one in (pack_rows(codes, 8), scale, zero, out)]
    cpu._C.dequantize_rows(*stored, 8, 10, 1)
    assert same(out, (codes.to(dtype) - zero) * scale)


@both
def test_sums_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    x = torch.cat([every(dtype), every(dtype)[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))]])
    cos = torch.randn(len(x), 1, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    sin = torch.randn(len(x), 1, 2, generator=torch.Generator().manual_seed(2)).to(dtype)
    pairs = torch.stack([x, x.flip(0)], dim=-1)
    expected = pairs * cos[:, 0] + torch.stack([-x.flip(0), x], dim=-1) * sin[:, 0]
    assert same(rotated(x, cos, sin), expected)


@both
def test_what_is_too_large_or_no_number_stays_so(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gate = torch.tensor([largest, largest, float("nan"), float("inf"), -float("inf")], dtype=dtype)
    up = torch.tensor([2.0, -2.0, 1.0, 1.0, 1.0], dtype=dtype)
    found = gated_silu(torch.cat([gate, up]))
    assert found[:2].tolist() == [float("inf"), -float("inf")]
    assert found[2].isnan() and found[3] == float("inf") and found[4].isnan()
