"""Stored scales: which scale a group gets, and how files hold it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import (
    exponent_codes,
    global_scale_for,
    pack_scale,
    scales_of_exponents,
    stored_scale,
    unpack_scale,
)
from goldstick.errors import QuantizationError

MXFP4, MXFP8 = Scheme.parse("mxfp4a16").weight, Scheme.parse("mxfp8a16").weight
MXFP6, NVFP4, FP8 = (Scheme.parse(name).weight for name in ("mxfp6a16", "nvfp4a16", "fp8a16"))


@pytest.mark.parametrize(
    ("grid", "largest", "exponent"),
    [
        (MXFP4, 1.7499, -2), (MXFP4, 1.75, -1), (MXFP4, 6.0, 0), (MXFP4, 7.0, 1),
        (MXFP8, 1.7499, -8), (MXFP8, 1.75, -7), (MXFP8, 448.0, 1),
        (MXFP6, 1.9374, -2), (MXFP6, 1.9375, -1),
    ],
)  # fmt: skip
def test_a_power_of_two_maps_the_largest_value_into_the_last_binade(grid: Any, largest: float, exponent: int) -> None:
    found = stored_scale(torch.tensor([largest]), grid, torch.float32)
    assert found.item() == 2.0**exponent


def test_groups_of_zeros_have_a_scale() -> None:
    for grid in (MXFP4, MXFP8, FP8):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert stored_scale(torch.zeros(1), grid, dtype).item() > 0
    assert stored_scale(torch.zeros(1), NVFP4, torch.bfloat16, torch.tensor(1.0)).item() == 0.125


def test_scales_of_fp8_are_numbers_of_fp8() -> None:
    divisor = global_scale_for(torch.tensor(3.0), NVFP4)
    assert divisor.item() == pytest.approx(448 * 6 / 3)
    found = stored_scale(torch.rand(1000) * 3, NVFP4, torch.bfloat16, divisor)
    assert torch.equal(found.to(torch.float8_e4m3fn).to(torch.bfloat16), found)
    assert found.max() <= 448


def test_with_room_for_a_search_the_scale_of_scales_is_a_power_of_two() -> None:
    divisor = global_scale_for(torch.rand(100) + 0.01, NVFP4, room=True)
    assert bool((torch.frexp(divisor).mantissa == 0.5).all())
    assert bool((divisor <= 256 * 6 / 0.01).all())
    assert global_scale_for(torch.tensor(0.0), NVFP4).item() == 1


def test_exponents_are_read_back() -> None:
    codes = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(exponent_codes(scales_of_exponents(codes, torch.float32)), codes)
    with pytest.raises(QuantizationError, match="255, which stands for no number"):
        scales_of_exponents(torch.tensor([255], dtype=torch.uint8), torch.float32)
    with pytest.raises(QuantizationError, match="too much for"):
        scales_of_exponents(torch.tensor([200], dtype=torch.uint8), torch.float16)


@pytest.mark.parametrize("grid", [MXFP4, NVFP4, FP8], ids=lambda grid: grid.label)
def test_scales_are_what_they_were_after_a_file(grid: Any) -> None:
    divisor = torch.tensor(9.0) if grid is NVFP4 else None
    scale = stored_scale(torch.rand(50) + 0.1, grid, torch.bfloat16, divisor)
    stored = pack_scale(scale, grid)
    assert stored.element_size() == (2 if grid is FP8 else 1)
    assert torch.equal(unpack_scale(stored, grid).to(torch.bfloat16), scale)


def test_a_scale_that_does_not_fit_is_refused() -> None:
    with pytest.raises(QuantizationError, match="does not fit"):
        stored_scale(torch.tensor([math.inf]), FP8, torch.float16)
