"""Running several tasks, and comparing two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldstick.errors import DataError, UsageError
from goldstick.evaluation import Evaluation, LanguageModel, TaskResult, compare, evaluate
from goldstick.evaluation.metrics import Items, uncertainty


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/heldout.txt").write_text("the cat sat on the mat. " * 30)
    (tmp_path / "tinystories").mkdir()
    rows = [json.dumps({"part": "test", "text": f"story number {i}"}) for i in range(5)]
    (tmp_path / "tinystories/stories.jsonl").write_text("\n".join(rows))
    return tmp_path


def result(value: float, *, protocol: str = "loglik@1", items: list[float] | None = None, n: int = 4) -> Evaluation:
    details = uncertainty({"accuracy": Items(values=items)}) if items else {}
    return Evaluation(
        results={"boolq": TaskResult(protocol=protocol, n=n, metrics={"accuracy": value}, details=details)},
        tokenizer="t",
    )


def perplexity(value: float, tokenizer: str = "t") -> Evaluation:
    metrics = {"perplexity": value, "bits_per_byte": value / 10}
    return Evaluation(results={"text": TaskResult(protocol="gptq@2048", n=3, metrics=metrics)}, tokenizer=tokenizer)


def test_an_evaluation_is_plain_data_in_the_order_asked_for(language_model: LanguageModel, small_data: Path) -> None:
    data = evaluate(language_model, ["tinystories", "text"], small_data, limit=2).to_dict()
    assert list(data) == ["tasks"]
    assert list(data["tasks"]) == ["tinystories", "text"]
    for entry in data["tasks"].values():
        assert list(entry) == ["protocol", "n", "metrics", "tokenizer", "details"]
        assert entry["n"] == 2
        assert entry["tokenizer"] == language_model.tokenizer_hash
    assert json.loads(json.dumps(data)) == data


def test_an_evaluation_repeats_to_the_last_digit(language_model: LanguageModel, small_data: Path) -> None:
    runs = [evaluate(language_model, ["tinystories", "text"], small_data).to_dict() for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (["wikitext"], "no task 'wikitext'; did you mean 'wikitext2'"),
        (["zzz"], "no task 'zzz'; The tasks are wikitext2, "),
        ([], "no task to evaluate"),
        ("boolq", "not the string"),
        (["text", "text"], "asked for twice"),
    ],
)
def test_tasks_that_cannot_be_meant_are_refused(language_model: LanguageModel, tasks: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        evaluate(language_model, tasks)


def test_a_limit_below_one_is_refused(language_model: LanguageModel) -> None:
    with pytest.raises(UsageError, match="limit=0"):
        evaluate(language_model, ["text"], limit=0)


def test_missing_data_are_known_before_the_first_task_begins(language_model: LanguageModel, small_data: Path) -> None:
    steps: list[Any] = []
    (small_data / "text/heldout.txt").unlink()
    with pytest.raises(DataError, match=r"text/heldout\.txt"):
        evaluate(language_model, ["tinystories", "text"], small_data, progress=lambda *step: steps.append(step))
    assert steps == []


def test_a_lower_perplexity_and_a_higher_accuracy_are_better() -> None:
    (first, second) = compare(perplexity(11.0), perplexity(10.0))
    assert (first.direction, first.worse, first.difference) == ("lower", True, pytest.approx(1.0))
    assert first.relative == pytest.approx(0.1)
    assert (second.metric, second.direction, second.worse) == ("bits_per_byte", "lower", True)
    (row,) = compare(result(75.0), result(50.0))
    assert (row.direction, row.worse, row.relative) == ("higher", False, pytest.approx(0.5))
    (row,) = compare(result(75.0), result(75.0))
    assert not row.worse


def test_items_in_common_give_the_difference_an_interval() -> None:
    after, before = [1.0, 0.0] * 50, [1.0, 1.0, 1.0, 0.0] * 25
    (row,) = compare(result(50.0, items=after), result(75.0, items=before))
    assert row.interval is not None
    assert row.interval[0] < row.difference < row.interval[1] < 0  # type: ignore[operator]
    (row,) = compare(result(50.0), result(75.0))
    assert row.interval is None


@pytest.mark.parametrize(
    ("after", "before", "note"),
    [
        (result(1.0, protocol="loglik@2"), result(1.0), "protocols differ: loglik@1 before, loglik@2 after"),
        (result(1.0, n=5), result(1.0), "items differ: 4 before, 5 after"),
        (perplexity(float("inf")), perplexity(3.0), "not finite"),
        (perplexity(3.0, "other"), perplexity(3.0), "tokenizers differ"),
    ],
)
def test_what_does_not_compare_gets_a_note_and_no_difference(after: Evaluation, before: Evaluation, note: str) -> None:
    row = compare(after, before)[0]
    assert (row.note, row.difference, row.relative, row.interval) == (note, None, None, None)


def test_bits_per_byte_compares_between_tokenizers() -> None:
    assert compare(perplexity(3.0, "other"), perplexity(3.0))[1].difference == 0.0


def test_a_task_on_one_side_only_is_listed() -> None:
    rows = compare(perplexity(3.0), result(50.0).to_dict())
    assert [(row.task, row.note) for row in rows] == [
        ("text", "only after"),
        ("text", "only after"),
        ("boolq", "only before"),
    ]
