"""The table of calibrated recipes beside rounding: draws are averaged item by item, and what is worse is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.beside_rounding import RECIPES, cell, over_seeds, read, table
from benchmarks.tasks import format_table

TASKS = {one.name: one for one in format_table().measurements}
TEXT, ANSWERS = TASKS["text, bundled"], TASKS["boolq, bundled"]
COUNT = 40


def losses(*shifts: float) -> dict[str, Any]:
    """Of a text, one draw for each shift: −log p of documents of ten tokens each."""
    values = [10.0 + item % 5 for item in range(COUNT)]
    return {
        str(seed): {"tasks": {TEXT.name: {"values": [value + shift for value in values], "weights": [10] * COUNT,
                                          "exponential": True, "factor": 1.0}}}
        for seed, shift in enumerate(shifts)
    }  # fmt: skip


def answers(*right: int) -> dict[str, Any]:
    """Of questions, one draw for each number of right answers."""
    return {
        str(seed): {"tasks": {ANSWERS.name: {"values": [float(item < count) for item in range(COUNT)]}}}
        for seed, count in enumerate(right)
    }


def test_draws_are_averaged_item_by_item() -> None:
    assert over_seeds(losses(0.0, 0.3), TEXT.name).values == pytest.approx([10.15 + item % 5 for item in range(COUNT)])
    assert over_seeds(answers(20, 30), ANSWERS.name).metric() == pytest.approx(62.5)


@pytest.mark.parametrize(
    ("shifts", "word"), [((0.1, 0.2), "**worse**"), ((-0.1, -0.2), "better"), ((0.0, 0.0), "equal")]
)
def test_of_a_text_less_loss_is_better(shifts: tuple[float, float], word: str) -> None:
    assert word in cell(losses(*shifts), losses(0.0), TEXT)


@pytest.mark.parametrize(
    ("right", "word"), [((5, 10), "**worse**"), ((35, 40), "better"), ((20, 20), "equal"), ((19, 20), "no difference")]
)
def test_of_questions_more_right_answers_are_better(right: tuple[int, int], word: str) -> None:
    assert word in cell(answers(*right), answers(20), ANSWERS)


def test_the_table_has_a_column_for_each_recipe_that_was_measured() -> None:
    results = read()
    head = table(results).splitlines()[0]
    measured = [f"{method}-{scheme}" for scheme, methods in RECIPES.items() for method in methods]
    assert [name.strip(" `") for name in head.split("|")[2:-1]] == [name for name in measured if name in results]
