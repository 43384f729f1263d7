"""The error of a quantized weight: against sums in float64, and adding up over parts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from goldstick.core import rows
from goldstick.core.error import WeightError, weight_error
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, quantize_on_grid

GRID = Grid(bits=4, symmetric=False, granularity="group", group_size=16)


def quantized(weight: Tensor) -> QuantizedTensor:
    scale = torch.rand(*weight.shape[:-1], weight.shape[-1] // 16) * 0.2 + 0.2
    return quantize_on_grid(weight, scale, torch.full_like(scale, 7.25), GRID)


def test_signal_noise_and_largest_error_are_those_of_the_two_matrices() -> None:
    weight = torch.randn(7, 64)
    tensor = quantized(weight)
    error = weight_error(weight, tensor)
    difference = weight.double() - tensor.dequantize().double()
    assert error.signal == pytest.approx(weight.double().square().sum().item(), rel=1e-6)
    assert error.noise == pytest.approx(difference.square().sum().item(), rel=1e-5)
    assert error.max_abs == pytest.approx(difference.abs().max().item(), rel=1e-6)
    ratio = weight.double().square().sum() / difference.square().sum()
    assert error.sqnr_db == pytest.approx(10 * math.log10(ratio), abs=1e-4)


def test_errors_of_parts_add_up_to_the_error_of_the_whole() -> None:
    weight = torch.randn(3, 5, 32)
    tensor = quantized(weight)
    parts = [
        weight_error(
            weight[expert],
            QuantizedTensor(
                codes=tensor.codes[expert], scale=tensor.scale[expert], zero=tensor.zero[expert], grid=GRID
            ),
        )
        for expert in range(3)
    ]
    total = parts[0] + parts[1] + parts[2]
    whole = weight_error(weight, tensor)
    assert total.signal == pytest.approx(whole.signal, rel=1e-12)
    assert total.noise == pytest.approx(whole.noise, rel=1e-12)
    assert total.max_abs == whole.max_abs == max(part.max_abs for part in parts)


def test_the_worst_channels_are_those_of_the_lowest_ratio_one_by_one() -> None:
    weight = torch.randn(9, 64)
    weight[4] = 0.0  # has no signal
    tensor = quantized(weight)
    difference = weight.double() - tensor.dequantize().double()
    ratios = {}
    for row in range(9):
        if row != 4:
            ratio = weight[row].double().square().sum() / difference[row].square().sum()
            ratios[str(row)] = 10 * math.log10(ratio)
    expected = sorted(ratios.items(), key=lambda pair: pair[1])[:3]
    found = weight_error(weight, tensor).worst
    assert [channel for channel, _ in found] == [channel for channel, _ in expected]
    assert [decibels for _, decibels in found] == pytest.approx([decibels for _, decibels in expected], abs=1e-4)


def test_channels_of_experts_and_of_parts_say_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(3, 5, 32)
    tensor = quantized(weight)
    for elements in (10**6, 100):  # at once, and a row at a time
        monkeypatch.setattr(rows, "CHUNK_ELEMENTS", elements)
        stacked = weight_error(weight, tensor)
        parts = [
            weight_error(
                weight[number],
                QuantizedTensor(
                    codes=tensor.codes[number], scale=tensor.scale[number], zero=tensor.zero[number], grid=GRID
                ),
            ).of_part(f"matrix {number}")
            for number in range(3)
        ]
        assert (parts[2] + parts[0] + parts[1]).worst == stacked.worst
        assert len(stacked.worst) == 3


def test_working_in_smaller_chunks_changes_nothing_but_the_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(9, 64)
    tensor = quantized(weight)
    whole = weight_error(weight, tensor)
    monkeypatch.setattr(rows, "CHUNK_ELEMENTS", 100)
    pieces = weight_error(weight, tensor)
    assert pieces.max_abs == whole.max_abs
    assert pieces.noise == pytest.approx(whole.noise, rel=1e-12)


def test_a_weight_that_lies_on_its_grid_has_no_noise_and_no_ratio() -> None:
    weight = torch.randint(0, 16, (2, 32)).float()
    tensor = quantize_on_grid(weight, torch.ones(2, 2), torch.zeros(2, 2), GRID)
    error = weight_error(weight, tensor)
    assert (error.noise, error.max_abs, error.sqnr_db, error.worst) == (0.0, 0.0, None, ())
    assert error.signal > 0


def test_a_weight_of_zeros_has_no_ratio() -> None:
    assert WeightError(signal=0.0, noise=1.0, max_abs=1.0).sqnr_db is None


@pytest.mark.parametrize(("count", "columns", "copies"), [(1, 1, 1), (10, 7, 1), (10, 7, 3), (5, 1000, 1), (0, 4, 1)])
def test_row_chunks_cover_every_row_once_and_stay_small(
    count: int, columns: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHUNK_ELEMENTS", 50)
    chunks = list(rows.row_chunks(torch.empty(count, columns), copies))
    assert [row for chunk in chunks for row in range(count)[chunk]] == list(range(count))
    for chunk in chunks:
        height = chunk.stop - chunk.start
        assert height == 1 or height * columns * copies <= 50
