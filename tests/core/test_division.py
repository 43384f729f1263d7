"""Tasks are divided evenly, in windows, and the first has least."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from goldstick.core.agreement import require_same
from goldstick.core.division import balanced, parts_of_upper, slow_ranks, upper_share, windows
from goldstick.core.ranks import Ranks
from goldstick.errors import UsageError


def test_the_longest_task_has_a_rank_of_its_own_and_what_costs_nothing_is_the_firsts() -> None:
    assert balanced([1, 1, 0, 5, 1, 2], 2) == [0, 0, 0, 1, 0, 0]
    assert balanced([1], 3) == [2]  # the first also writes


def test_no_rank_has_more_than_the_mean_and_one_task() -> None:
    costs = [(7 * number) % 11 + 1 for number in range(40)]
    for count in (1, 2, 3, 8):
        owners = balanced(costs, count)
        work = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(count)]
        assert max(work) <= sum(costs) / count + max(costs)


def test_windows_hold_all_tasks_in_order_and_no_more_than_they_may() -> None:
    costs = [3, 4, 10, 1, 1, 1]
    found = [*windows(costs, 7)]
    assert [task for window in found for task in window] == [*range(6)]
    assert [sum(costs[task] for task in window) for window in found] == [7, 10, 3]


@pytest.mark.parametrize(("size", "most"), [(1, 1), (100, 1), (128, 1), (768, 0.6), (3072, 0.54), (28672, 0.54)])
def test_what_is_sent_of_a_symmetric_matrix_is_its_upper_half_and_little_more(size: int, most: float) -> None:
    parts = parts_of_upper(size)
    assert [row for part in parts for row in range(size)[part]] == [*range(size)]
    assert len(parts) <= 16
    sent = sum(len(range(size)[part]) * (size - part.start) for part in parts)
    assert upper_share(size) == sent / size**2 <= most
    assert sent >= size * (size + 1) / 2


def test_one_alone_does_every_task_when_it_is_asked_for() -> None:
    done: list[int] = []
    found: Iterator[None] = Ranks().in_order([1.0, 0.0, 2.0], done.append, 1.0)
    assert done == []
    next(found)
    assert done == [0]
    assert [*found] == [None, None] and done == [0, 1, 2]


def test_a_rank_far_behind_the_median_is_named_and_one_a_little_behind_is_not() -> None:
    assert [text[:6] for text in slow_ranks([20, 21, 60, 22])] == ["rank 2"]
    assert slow_ranks([1, 2, 5]) == []


class _Told(Ranks):
    """The first of ranks whose others say something else."""

    def __init__(self, **others: object) -> None:
        super().__init__()
        self._others = others

    def gather(self, value):  # type: ignore[no-untyped-def]
        return [value, value, {**value, **self._others}]


def test_ranks_of_another_version_refuse_to_start_and_say_which() -> None:
    require_same(_Told(), {"recipe": "a"})
    with pytest.raises(UsageError, match="rank 2 has another version of goldstick or a library than rank 0"):
        require_same(_Told(**{"version of goldstick or a library": {"goldstick": "0.0"}}), {"recipe": "a"})
