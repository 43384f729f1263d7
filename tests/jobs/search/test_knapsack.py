"""The knapsack's front against the enumeration of every choice."""

from __future__ import annotations

import itertools
import random

import pytest

from goldstick.jobs.search import knapsack
from goldstick.jobs.search.knapsack import Front, Option


def problem(seed: int) -> list[list[Option]]:
    chance = random.Random(seed)
    return [
        [
            Option(nbytes=chance.randint(1, 60), loss=chance.choice([chance.random(), 0.5]))
            for _ in range(chance.randint(1, 5))
        ]
        for _ in range(6)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_of_every_size_is_the_best_of_all_that_there_are(seed: int) -> None:
    groups = problem(seed)
    front = Front(groups)
    assert front.exact
    every = [
        (sum(one.nbytes for one in choice), sum(one.loss for one in choice)) for choice in itertools.product(*groups)
    ]
    for size in range(min(nbytes for nbytes, _ in every), max(nbytes for nbytes, _ in every) + 1):
        found = front.within(size)
        assert found is not None and found.nbytes <= size
        assert found.loss == pytest.approx(min(loss for nbytes, loss in every if nbytes <= size), rel=1e-12)
        picked = [options[pick] for options, pick in zip(groups, found.picks, strict=True)]
        assert found.nbytes == sum(one.nbytes for one in picked)
        assert found.loss == pytest.approx(sum(one.loss for one in picked), rel=1e-12)


def test_less_than_the_smallest_has_no_choice() -> None:
    assert Front([[Option(nbytes=7, loss=1.0)]]).within(6) is None


def test_a_front_of_too_many_points_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[Option(nbytes=0, loss=2.0**power), Option(nbytes=2**power, loss=0.0)] for power in range(6)]
    exact = Front(groups)
    monkeypatch.setattr(knapsack, "MOST_POINTS", 4)
    thinned = Front(groups)
    assert not thinned.exact
    assert len(thinned) <= 5 < 64 == len(exact)
    assert thinned.nbytes[0] == exact.nbytes[0]
    found, best = thinned.within(40), exact.within(40)
    assert found is not None and best is not None and found.loss >= best.loss
