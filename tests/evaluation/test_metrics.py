"""Metrics against examples worked by hand and independent loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from goldstick.evaluation.metrics import (
    Items,
    bits_per_byte,
    bootstrap_interval,
    normalize_squad,
    paired_interval,
    perplexity,
    squad_exact_match,
    squad_f1,
)
from goldstick.evaluation.mindformers_scores import mindformers_exact_match, mindformers_f1


def test_squad_normalisation_drops_case_punctuation_articles_and_spaces() -> None:
    assert normalize_squad("The  Quick, (brown) fox -- an  A.") == "quick brown fox"
    assert normalize_squad("theatre of another") == "theatre of another"
    assert normalize_squad("U.S.A.") == "usa"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The Denver Broncos!", ["denver broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),  # precision 1, recall 1/2
        ("Denver Broncos of Denver", ["Denver Broncos"], 0.0, 2 / 3),  # shared 2 of 4 and of 2
        ("cat cat", ["cat dog dog"], 0.0, 0.4),  # one shared word: precision 1/2, recall 1/3
        ("in Paris", ["London", "Paris, France", "Paris"], 0.0, 2 / 3),  # the best answer counts
        ("nothing", ["something"], 0.0, 0.0),
        ("", ["a"], 1.0, 0.0),  # both empty once normalised: as the official script for 1.1 has it
    ],
)
def test_squad_metrics_equal_hand_worked_examples(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert squad_exact_match(prediction, answers) == exact
    assert squad_f1(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("I love Beijing, because it's beautiful", "I love Beijing.", 0.0, 0.5),  # MindFormers' own example
        ("Hello world。", "Hello world", 1.0, 1.0),  # and its other
        ("郑州", "郑州市", 0.0, 0.8),  # every Chinese sign is a word
        ("Nile", "the Nile", 0.0, 0.5),  # articles stay, and the space is a word: 1 of 1 and of 3
        ("3.5%", "3.5 %", 0.0, 0.0),  # a number with its sign is one word
        ("well-known", "Wellknown", 1.0, 1.0),
        ("a b c", "a x c", 0.0, 0.4),  # the longest run has no gap: "a " and " c", 2 words of 5 and of 5
        ("", "a", 0.0, 0.0),
    ],
)
def test_mindformers_scores_equal_hand_worked_examples(prediction: str, answer: str, exact: float, f1: float) -> None:
    assert mindformers_exact_match(prediction, answer) == exact
    assert mindformers_f1(prediction, answer) == pytest.approx(f1)


def test_perplexity_of_a_uniform_guess_is_the_number_of_choices() -> None:
    assert perplexity([3 * math.log(7.0), 5 * math.log(7.0)], [3, 5]) == pytest.approx(7.0)
    assert perplexity([2e6], [1]) == math.inf


def test_bits_per_byte_of_a_uniform_guess_over_bytes_is_eight() -> None:
    assert bits_per_byte([10 * math.log(256.0)], [10], 100, 100) == pytest.approx(8.0)
    assert bits_per_byte([10 * math.log(256.0)], [10], 25, 100) == pytest.approx(2.0)


def test_items_say_the_same_as_the_plain_formulas() -> None:
    right = [1, 0, 1, 1]
    assert Items(values=right).metric() == 75.0
    assert Items(values=right).standard_error() == pytest.approx(100 * statistics.stdev(right) / 2)
    nll, tokens = [4.0, 9.0, 2.0], [3, 5, 2]
    assert Items(values=nll, weights=tokens, exponential=True).metric() == pytest.approx(perplexity(nll, tokens))


def test_the_standard_error_of_a_perplexity_agrees_with_the_bootstrap() -> None:
    generator = np.random.default_rng(1)
    tokens = generator.integers(100, 300, size=400)
    nll = tokens * generator.normal(1.3, 0.2, size=400)
    items = Items(values=nll.tolist(), weights=tokens.tolist(), exponential=True)
    low, high = items.interval() or (0.0, 0.0)
    assert low < items.metric() < high
    assert (high - low) / (2 * 1.96) == pytest.approx(items.standard_error(), rel=0.15)


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(120):
        low, high = Items(values=(generator.random(150) < 0.6).astype(float).tolist()).interval() or (
            0.0,
            0.0,
        )
        covered += low <= 60.0 <= high
    assert 0.87 <= covered / 120 <= 1.0


def test_intervals_are_the_same_every_time_and_absent_for_a_single_item() -> None:
    items = Items(values=[1.0, 0.0, 0.0, 1.0, 1.0])
    assert items.interval() == items.interval()
    assert Items(values=[1.0]).interval() is None
    assert Items(values=[1.0]).standard_error() is None
    assert bootstrap_interval(lambda chosen: float(len(chosen)), 4) == (4.0, 4.0)


def test_a_paired_interval_is_narrower_than_two_apart() -> None:
    generator = np.random.default_rng(3)
    hardness = generator.normal(2.0, 1.0, size=200)
    before = Items(values=hardness.tolist())
    after = Items(values=(hardness + 0.1 + generator.normal(0.0, 0.01, size=200)).tolist())
    low, high = paired_interval(after, before) or (0.0, 0.0)
    assert 9.0 < low < 10.0 < high < 11.0
    alone = after.interval() or (0.0, 0.0)
    assert high - low < 0.1 * (alone[1] - alone[0])
    with pytest.raises(ValueError, match="paired"):
        paired_interval(after, Items(values=[1.0]))
