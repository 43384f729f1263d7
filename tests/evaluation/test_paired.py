"""Paired statistics against sums over every outcome, and against what they are meant to say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from goldstick.evaluation import Evaluation, TaskResult, compare
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.paired import compare_items, discordant_interval, mcnemar


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (0, 1), (0, 5), (1, 6), (3, 3), (9, 2), (4, 8)])
def test_mcnemar_counts_the_outcomes_that_are_as_lopsided_as_the_one_seen(gained: int, lost: int) -> None:
    n, as_lopsided = gained + lost, 0
    for outcome in itertools.product((0, 1), repeat=n):
        as_lopsided += abs(2 * sum(outcome) - n) >= abs(gained - lost)
    assert mcnemar(gained, lost) == as_lopsided / 2**n


def test_mcnemar_of_many_items_agrees_with_the_normal_approximation() -> None:
    for gained, lost in ((900, 1000), (5000, 5080), (1000, 1120)):
        z = (abs(gained - lost) - 1) / math.sqrt(gained + lost)  # with the correction for continuity
        assert mcnemar(gained, lost) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.03)


def test_the_interval_of_two_accuracies_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    lose, gain, items = 0.03, 0.01, 120
    draws = generator.random((3000, items))
    covered = 0
    for row in draws:
        low, high = discordant_interval(int((row > 1 - gain).sum()), int((row < lose).sum()), items)
        covered += low <= 100 * (gain - lose) <= high
    assert 0.94 <= covered / len(draws) <= 0.99  # the bootstrap's is 0.89 here


def test_no_change_among_few_items_does_not_rule_out_a_loss() -> None:
    few, many = Items(values=[1, 0] * 10), Items(values=[1, 0] * 1000)
    assert compare_items(few, few).interval == pytest.approx((-8.91, 8.91), abs=0.01)
    assert compare_items(many, many).interval == pytest.approx((-0.098, 0.098), abs=0.001)
    assert compare_items(few, few).p_value == 1.0
    assert compare_items(few, few).changed == 0


def test_scores_and_perplexities_are_drawn_again_together() -> None:
    generator = np.random.default_rng(6)
    tokens = generator.integers(50, 90, size=40).tolist()
    before = Items(values=(generator.normal(2.0, 0.4, size=40) * tokens).tolist(), weights=tokens, exponential=True)
    after = Items(values=[1.01 * value for value in before.values], weights=tokens, exponential=True)
    found = compare_items(after, before)
    draws = np.random.default_rng(0)
    differences, ratios = [], []
    for _ in range(1000):
        chosen = draws.integers(0, 40, size=40)
        figures = []
        for items in (after, before):
            nll = sum(items.values[index] for index in chosen)
            figures.append(math.exp(nll / sum(tokens[index] for index in chosen)))
        differences.append(figures[0] - figures[1])
        ratios.append(figures[0] / figures[1] - 1)
    assert found.p_value is None
    assert found.changed == 40
    for interval, values in ((found.interval, differences), (found.relative_interval, ratios)):
        assert interval is not None
        inside = sum(interval[0] <= value <= interval[1] for value in values)
        assert 950 <= inside <= 953


def test_a_difference_of_accuracies_is_shown_only_where_mcnemar_agrees() -> None:
    def rows(lost: int) -> bool:
        before = [1.0] * 100
        after = [0.0] * lost + [1.0] * (100 - lost)
        sides = [
            Evaluation(
                results={
                    "boolq": TaskResult(
                        protocol="loglik@1",
                        n=100,
                        metrics={"accuracy": Items(values=values).metric()},
                        details=uncertainty({"accuracy": Items(values=values)}),
                    )
                },
                tokenizer="t",
            )
            for values in (after, before)
        ]
        (row,) = compare(*sides)
        return row.shown

    assert [rows(lost) for lost in (0, 4, 5, 6, 9)] == [False, False, False, True, True]  # p(5) = 1/16, p(6) = 1/32


def test_items_of_different_number_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        compare_items(Items(values=[1.0]), Items(values=[1.0, 0.0]))
