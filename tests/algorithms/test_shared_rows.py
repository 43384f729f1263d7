"""Layers that several ranks solve together, each its rows: codes, losses and errors are those of one alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from goldstick.algorithms.gptq import solve_gptq
from goldstick.algorithms.solution import Solution
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.ranks import Ranks
from goldstick.core.scheme import Scheme
from goldstick.core.shared_rows import SharedRows
from goldstick.errors import QuantizationError
from tests.support.gptq import correlated, grid_of, hessian_of

Value = TypeVar("Value")
GRIDS = {
    "group": grid_of(4, True, 16),
    "zeros": grid_of(3, False, 16),
    "channel": grid_of(8, True, None),
    "nvfp4": Scheme.parse("nvfp4a16").weight,
    "mxfp4": Scheme.parse("mxfp4a16").weight,
    "q4_k": Scheme.parse("q4_k").weight,
    "block": Grid(bits=8, element="e4m3", granularity="block", group_size=16),  # rows share scales: solved by each
}


class _Threads(Ranks):
    """Ranks that are threads of one process, and hand each other what they gather."""

    def __init__(self, rank: int, count: int, box: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, count)
        self._box, self._barrier = box, barrier
        self.gathered = 0

    def gather(self, value: Value) -> list[Value]:
        self._barrier.wait(60)
        self._box[self.rank] = value
        self._barrier.wait(60)
        self.gathered += 1
        return list(self._box)


def _by_all(count: int, solve: Callable[[SharedRows], Solution]) -> tuple[list[Solution | Exception], int]:
    """What each of some ranks finds, and how often they spoke."""
    box: list[Any] = [None] * count
    found: list[Any] = [None] * count
    barrier = threading.Barrier(count)
    ranks = [_Threads(rank, count, box, barrier) for rank in range(count)]

    def run(rank: int) -> None:
        try:
            found[rank] = solve(SharedRows(ranks[rank]))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, ranks[0].gathered


def _same(first: QuantizedTensor, second: QuantizedTensor) -> bool:
    pairs = ((getattr(first, name), getattr(second, name)) for name in ("codes", "scale", "zero", "global_scale"))
    return all(one is other if one is None or other is None else torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("options", [{}, {"cycles": 1}, {"drift": True}], ids=["plain", "cycles", "drift"])
def test_ranks_that_share_rows_find_what_one_finds(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    blocks = GRIDS[name].superblock is not None
    width = 256 if blocks else 64
    weight, hessian = torch.randn(29, width), hessian_of(correlated(300, width))
    settings: dict[str, Any] = {**options, **({"search": "ggml-imatrix"} if blocks else {})}
    if settings.pop("drift", False):
        settings |= {"drift": 0.01 * hessian_of(correlated(300, width)), "alpha": 0.5}
    if options and name == "block":
        pytest.skip("what ranks do not share is the same for every option")
    alone = solve_gptq(weight, hessian, GRIDS[name], **settings)
    assert alone.fallback is None
    for count in (2, 3, 4):
        found, spoken = _by_all(
            count, lambda rows: solve_gptq(weight, hessian.clone(), GRIDS[name], rows=rows, **settings)
        )
        assert (spoken > 0) == (name != "block")
        for one in found:
            assert isinstance(one, Solution), one
            assert _same(one.tensor, alone.tensor)
            assert (one.damping, one.dead, one.rank) == (alone.damping, alone.dead, alone.rank)
            assert one.loss == pytest.approx(alone.loss, rel=1e-12)
            assert one.rtn_loss == pytest.approx(alone.rtn_loss, rel=1e-6)


def test_they_fall_back_to_rounding_together_or_not_at_all() -> None:
    """On inputs that do not hang together GPTQ's codes are those of rounding, or no better; one row alone may be."""
    torch.manual_seed(0)
    weight, grid = torch.randn(12, 32), grid_of(4, True, 16)
    weight[0] *= 100  # decides whatever the others say
    nothing, negative = torch.zeros(32, 32, dtype=torch.float64), -torch.eye(32, dtype=torch.float64)
    for hessian in (nothing, negative, torch.eye(32, dtype=torch.float64)):
        alone = solve_gptq(weight, hessian.clone(), grid)
        found, _ = _by_all(3, lambda rows, own=hessian: solve_gptq(weight, own.clone(), grid, rows=rows))  # type: ignore[misc]
        for one in found:
            assert isinstance(one, Solution), one
            assert _same(one.tensor, alone.tensor) and one.fallback == alone.fallback
        assert (alone.fallback is None) == bool(torch.equal(hessian, torch.eye(32, dtype=torch.float64)))


def test_fewer_rows_than_ranks_are_solved_by_each() -> None:
    torch.manual_seed(0)
    weight, hessian, grid = torch.randn(2, 32), hessian_of(correlated(300, 32)), grid_of(4, True, 16)
    found, spoken = _by_all(3, lambda rows: solve_gptq(weight, hessian.clone(), grid, rows=rows))
    assert spoken == 0 and all(isinstance(one, Solution) for one in found)


def test_an_error_of_one_is_raised_by_all() -> None:
    """A scale too large for its dtype, in a row of the last rank; a value that is no number is seen by all."""
    torch.manual_seed(0)
    hessian, grid = hessian_of(correlated(300, 32)), grid_of(1, True, 16)
    weight = torch.randn(9, 32).half()
    weight[8] = 6e4
    found, _ = _by_all(3, lambda rows: solve_gptq(weight, hessian.clone(), grid, search="minmax", rows=rows))
    assert all(isinstance(one, QuantizationError) and "does not fit" in str(one) for one in found), found
    weight = torch.randn(9, 32)
    weight[8, 3] = torch.nan
    found, _ = _by_all(3, lambda rows: solve_gptq(weight, hessian.clone(), grid, rows=rows))
    assert all(isinstance(one, QuantizationError) and "1 values" in str(one) for one in found), found
