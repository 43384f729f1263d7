"""Rows are solved with the ranges that leave them less error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.algorithms import row_ranges
from goldstick.algorithms.column_loop import Columns, solve_columns
from goldstick.algorithms.hessian_factor import column_order, inverse_factor
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.roundings import roundings
from goldstick.algorithms.row_ranges import solve_with_ranges
from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from tests.support.gptq import correlated, grid_of, hessian_of


def problem(grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs of few directions and some noise, so that columns can make up for much."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 64, generator=generator)
    inputs = torch.randn(500, 6, generator=generator) @ torch.randn(6, 64, generator=generator)
    hessian = hessian_of((inputs + 0.1 * torch.randn(500, 64, generator=generator)).double())
    columns = column_order(hessian.diagonal(), grid, "gar")
    factor = inverse_factor(hessian, 0.01 * float(hessian.diagonal().mean()), columns)
    assert factor is not None
    return weight, hessian, factor, columns


@pytest.mark.parametrize("grid", [grid_of(2), grid_of(3), replace(grid_of(3), symmetric=False)])
def test_each_row_is_that_of_one_of_the_ranges_and_where_it_was_clipped_never_clearly_worse_than_another(
    grid: Grid,
) -> None:
    weight, hessian, factor, columns = problem(grid)
    ranges = roundings(weight, grid, "mse", hessian.diagonal())
    solved, squares = solve_with_ranges(weight, factor, columns, ranges)
    alone = {name: solve_columns(weight, factor, columns, tensor) for name, tensor in ranges.items()}
    taken = set()
    for row in range(len(weight)):
        (name,) = [
            name
            for name, (codes, *_) in alone.items()
            if torch.equal(codes[row], solved.codes[row]) and torch.equal(ranges[name].scale[row], solved.scale[row])
        ][:1]
        assert squares[row] == alone[name].squares[row]
        first = alone["mse"]
        if first.clipped[row] > 0.2 * first.squares[row]:
            assert all(squares[row] <= found.squares[row] / 0.9 for found in alone.values())
        else:
            assert name == "mse"
        if solved.zero is not None and (zero := ranges[name].zero) is not None:
            assert torch.equal(solved.zero[row], zero[row])
        taken.add(name)
    assert taken == {"mse", "minmax"}


@pytest.mark.parametrize("scheme", ["w4a16-g32", "w3a16-g32-asym", "mxfp4a16", "w8a16-channel"])
def test_an_error_beyond_half_of_the_widest_step_is_that_of_a_clipped_column(scheme: str) -> None:
    grid, weight = Scheme.parse(scheme).weight, torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    factor, columns = torch.eye(64, dtype=torch.float64), torch.arange(64)
    half = 1.0 if grid.element == "e2m1" else 0.5
    plain = quantize_with_search(weight, grid, "minmax")
    for ranges, clips in ((plain, False), (replace(plain, scale=plain.scale / 2), True)):
        solved = solve_columns(weight, factor, columns, ranges)
        errors = (weight.double() - replace(ranges, codes=solved.codes).dequantize().double()).square()
        steps = ranges.steps().double().repeat_interleave(64 // ranges.scale.shape[1], dim=1)
        beyond = errors > (1.001 * half * steps).square()
        assert torch.allclose(solved.squares, errors.sum(1)) and torch.allclose(
            solved.clipped, (errors * beyond).sum(1)
        )
        assert bool(beyond.any(1).all()) if clips else not beyond.any()


def test_rows_without_clipped_columns_are_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian, factor, columns = problem(grid_of(4))
    ranges = roundings(weight, grid_of(4), "mse", hessian.diagonal())
    asked: list[int] = []

    def counted(target: Tensor, *arguments: Any) -> Columns:
        asked.append(len(target))
        return solve_columns(target, *arguments)

    monkeypatch.setattr(row_ranges, "solve_columns", counted)
    first = solve_columns(weight, factor, columns, ranges["mse"])
    expected = int((first.clipped > 0.2 * first.squares).sum())
    solve_with_ranges(weight, factor, columns, ranges)
    assert asked == [len(weight), expected] and 0 < expected < len(weight)


def test_what_codes_stand_for_is_what_the_error_is_of() -> None:
    grid = grid_of(2)
    weight, hessian, factor, columns = problem(grid)
    solved, squares = solve_with_ranges(weight, factor, columns, roundings(weight, grid, "mse", hessian.diagonal()))
    damped = hessian + 0.01 * float(hessian.diagonal().mean()) * torch.eye(64)
    delta = weight.double() - solved.dequantize().double()
    assert torch.allclose(((delta @ damped) * delta).sum(1), squares, rtol=1e-6)


def test_rows_that_share_scales_have_one_answer() -> None:
    grid = Grid(bits=8, symmetric=True, granularity="block", group_size=8, element="e4m3")
    weight, _, factor, columns = problem(grid)
    first = quantize_with_search(weight, grid, "minmax")
    wider = replace(first, scale=first.scale * 1.5)
    narrow = replace(first, scale=first.scale / 4)  # clips
    for ranges in ({"mse": first, "minmax": wider}, {"mse": wider, "minmax": first}, {"mse": narrow, "minmax": first}):
        solved, squares = solve_with_ranges(weight, factor, columns, ranges)
        (same,) = [one for one in ranges.values() if torch.equal(one.scale, solved.scale)]
        assert ranges["mse"] is not narrow or same is first
        assert torch.equal(solve_columns(weight, factor, columns, same).squares, squares)


def test_superblocks_are_taken_with_the_scales_of_their_scales() -> None:
    weight = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    grid = Scheme.parse("q4_k").weight
    hessian = hessian_of(correlated(600, 256))
    columns = column_order(hessian.diagonal(), grid, "gar")
    factor = inverse_factor(hessian, 0.01 * float(hessian.diagonal().mean()), columns)
    assert factor is not None
    first = quantize_with_search(weight, grid, "ggml")
    other = quantize_with_search(weight * 0.9, grid, "ggml")
    solved, squares = solve_with_ranges(weight, factor, columns, {"first": first, "other": other})
    delta = weight.double() - solved.dequantize().double()
    damped = hessian + 0.01 * float(hessian.diagonal().mean()) * torch.eye(256)
    assert torch.allclose(((delta @ damped) * delta).sum(1), squares, rtol=1e-5)
