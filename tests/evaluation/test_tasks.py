"""Each task's protocol on small files, and every registered task on the real data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from goldstick.errors import DataError
from goldstick.evaluation import TASKS, DataSource, LanguageModel, evaluate
from goldstick.evaluation.tasks.boolq import BoolQ
from goldstick.evaluation.tasks.ceval import CEval
from goldstick.evaluation.tasks.ceval_subjects import SUBJECTS
from goldstick.evaluation.tasks.squad import Squad
from goldstick.evaluation.tasks.text import TEXT, TINYSTORIES, WIKITEXT2


def put(directory: Path, name: str, *rows: Any) -> None:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class Parrot(LanguageModel):
    """Gives prepared answers and writes down what it was asked."""

    def __init__(self, likelihoods: dict[str, float] | None = None, texts: list[str] | None = None) -> None:
        self.likelihoods, self.texts = likelihoods or {}, texts or []
        self.pairs: list[tuple[str, str]] = []
        self.prompts: list[str] = []
        self.context_length = 512

    def continuation_log_likelihood(self, pairs: Any, advance: Any = None, places: Any = ()) -> list[float]:
        self.pairs = list(pairs)
        return [self.likelihoods.get(continuation, -99.0) for _, continuation in pairs]

    def generate_greedy(self, prompts: Any, max_new_tokens: int, stop: Any = (), advance: Any = None) -> list[str]:
        self.prompts = list(prompts)
        self.stop = list(stop)
        return self.texts


def slow_windows(language_model: LanguageModel, ids: list[int], window: int) -> float:
    """GPTQ's own loop: mean cross entropy per window, weighted by the window, over all windows' tokens."""
    losses = []
    for i in range(len(ids) // window):
        piece = torch.tensor([ids[i * window : (i + 1) * window]])
        with torch.no_grad():
            logits = language_model.model(piece).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], piece[0, 1:]).double() * window)
    return math.exp(float(torch.stack(losses).sum()) / (len(losses) * window))


def test_windowed_perplexity_equals_an_independent_loop(language_model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    text = "It was the best of times,\n\nit was the worst of times. " * 9
    (tmp_path / "text/heldout.txt").write_text(text)
    result = TEXT.run(language_model, DataSource(tmp_path), None, None)
    ids = language_model.encode(text)
    assert result.n == len(ids) // 96
    assert result.protocol == "gptq@96 (shortened from 2048: the model's context is 96)"
    assert result.metrics["perplexity"] == pytest.approx(slow_windows(language_model, ids, 96), rel=1e-5)
    one = TEXT.run(language_model, DataSource(tmp_path), 1, None)
    assert one.n == 1
    assert one.metrics["perplexity"] == pytest.approx(slow_windows(language_model, ids[:96], 96), rel=1e-5)


def test_a_window_that_fits_keeps_the_plain_protocol(
    make_language_model: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/heldout.txt").write_text("abc " * 600)
    model = make_language_model(context_length=4096)
    result = TEXT.run(model, DataSource(tmp_path), None, None)
    assert (result.protocol, result.n) == ("gptq@2048", 1)


def test_a_text_shorter_than_one_window_is_a_data_error(language_model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/heldout.txt").write_text("too short")
    with pytest.raises(DataError, match="10 tokens and a window takes 96"):
        TEXT.run(language_model, DataSource(tmp_path), None, None)


def test_wikitext_lines_are_joined_as_the_hub_s_rows_would_be(tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2/wiki.test.raw").write_text(" \n = Title = \n \n A sentence . \n")
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return [1]

    with pytest.raises(DataError):
        WIKITEXT2.run(SimpleNamespace(encode=encode, context_length=2048), DataSource(tmp_path), None, None)  # type: ignore[arg-type]
    assert seen == ["\n\n".join(["", " = Title = \n", "", " A sentence . \n"])]


def test_bits_per_byte_counts_bytes_where_a_token_is_one(language_model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/heldout.txt").write_text("x" * 959)  # 960 tokens with the beginning: ten windows
    metrics = TEXT.run(language_model, DataSource(tmp_path), None, None).metrics
    expected = math.log2(metrics["perplexity"]) * 960 / 959
    assert metrics["bits_per_byte"] == pytest.approx(expected)


def test_stories_are_those_of_the_held_out_part_cut_to_the_window(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    stories = [
        {"part": "val", "text": "seen"},
        {"part": "test", "text": "first"},
        {"part": "test", "text": "long " * 60},
    ]
    put(tmp_path, "tinystories/stories.jsonl", *stories)
    result = TINYSTORIES.run(language_model, DataSource(tmp_path), None, None)
    assert result.n == 2
    assert result.details["items"]["perplexity"]["weights"] == [5, 95]
    losses = [
        -float(row.double().sum())
        for row in language_model.token_log_probabilities(
            [language_model.encode("first"), language_model.encode("long " * 60)[:96]]
        )
    ]
    assert result.metrics["perplexity"] == pytest.approx(math.exp(sum(losses) / 100))
    put(tmp_path, "tinystories/stories.jsonl", {"part": "val", "text": "seen"})
    with pytest.raises(DataError, match="'test'"):
        TINYSTORIES.run(language_model, DataSource(tmp_path), None, None)


@pytest.mark.parametrize("field", [{"label": True}, {"label": 1}, {"answer": True}])
def test_boolq_asks_as_the_harness_does_and_reads_either_label(tmp_path: Path, field: dict[str, Any]) -> None:
    put(tmp_path, "boolq/val.jsonl", {"passage": "Fire burns.", "question": "is fire hot", **field})
    parrot = Parrot({" yes": -1.0, " no": -2.0})
    result = BoolQ().run(parrot, DataSource(tmp_path), None, None)
    context = "Fire burns.\nQuestion: is fire hot?\nAnswer:"
    assert parrot.pairs == [(context, " no"), (context, " yes")]
    assert result.metrics == {"accuracy": 100.0}
    assert BoolQ().run(Parrot({" no": -1.0}), DataSource(tmp_path), None, None).metrics == {"accuracy": 0.0}


def test_boolq_without_a_label_names_the_row(tmp_path: Path) -> None:
    put(tmp_path, "boolq/val.jsonl", {"passage": "p", "question": "q", "label": "maybe"})
    with pytest.raises(DataError, match=r"row 1: label .* not 'maybe'"):
        BoolQ().load(DataSource(tmp_path))


def test_squad_prompts_and_scores_the_first_line(tmp_path: Path) -> None:
    answers = [{"text": "the Nile", "answer_start": 0}, {"text": "Nile river", "answer_start": 0}]
    paragraph = {"context": "Rivers.", "qas": [{"id": "1", "question": "Which?", "answers": answers}]}
    document = {"version": "1.1", "data": [{"title": "Egypt", "paragraphs": [paragraph]}]}
    put(tmp_path, "squad/dev_small-v1.1.json", document)
    parrot = Parrot(texts=[" Nile. "])
    result = Squad().run(parrot, DataSource(tmp_path), None, None)
    assert parrot.stop == ["\n"]
    assert parrot.prompts == ["Title: Egypt\n\nBackground: Rivers.\n\nQuestion: Which?\n\nAnswer:"]
    assert result.metrics == {"exact_match": 100.0, "f1": 100.0}
    wrong = Squad().run(Parrot(texts=["the river Nile"]), DataSource(tmp_path), None, None)
    assert wrong.metrics == {"exact_match": 0.0, "f1": 100.0}
    paragraph["qas"] = [{"id": "2", "question": "Who?", "answers": []}]  # as in version 2.0
    put(tmp_path, "squad/dev_small-v1.1.json", document)
    with pytest.raises(DataError, match=r"the question 'Who\?' of 'Egypt' has no answer"):
        Squad().load(DataSource(tmp_path))
    put(tmp_path, "squad/dev_small-v1.1.json", {"data": [{"title": "Egypt"}]})
    with pytest.raises(DataError, match=r"not the official SQuAD 1\.1 layout"):
        Squad().load(DataSource(tmp_path))


@pytest.mark.parametrize(
    ("text", "accuracy"), [("Yes, it is", 100.0), (" I know", 0.0), (" no; yes", 100.0), ("", 0.0)]
)
def test_goldenstick_s_boolq_looks_for_the_word_in_what_is_generated(
    tmp_path: Path, text: str, accuracy: float
) -> None:
    put(tmp_path, "boolq/val.jsonl", {"passage": "It burns.", "question": "is fire hot", "label": 1, "title": "Fire"})
    parrot = Parrot(texts=[text])
    result = TASKS["boolq/goldenstick"].run(parrot, DataSource(tmp_path), None, None)
    assert result.metrics == {"accuracy": accuracy}
    assert result.details["answered"] == (100.0 if text else 0.0)
    asked = "Please read the following passage and answer the question directly with either 'yes' or 'no' without "
    asked += "analysis process.\n\n ### Passage:\nFire -- It burns.\n### Question:\nis fire hot\n### Answer:"
    assert parrot.prompts == [asked]
    put(tmp_path, "boolq/val.jsonl", {"passage": "Fire -- It burns.", "question": "is fire hot", "label": 1})
    TASKS["boolq/goldenstick"].run(parrot, DataSource(tmp_path), None, None)
    assert parrot.prompts == [asked]  # where the title stands in the passage already


def test_goldenstick_s_squad_asks_the_first_question_and_knows_the_first_answer(tmp_path: Path) -> None:
    def asked(question: str, *answers: str) -> dict[str, Any]:
        return {"question": question, "answers": [{"text": answer, "answer_start": 0} for answer in answers]}

    paragraphs = [
        {"context": "Rivers.", "qas": [asked("Which?", "the Nile", "Nile"), asked("Where?", "Egypt")]},
        {"context": "Hills.", "qas": [asked("Which?", "Sinai")]},
    ]
    put(tmp_path, "squad/dev-v1.1.json", {"data": [{"title": "Egypt", "paragraphs": paragraphs}]})
    parrot = Parrot(texts=["\n Nile \nQuestion", "Sinai"])
    result = TASKS["squad/goldenstick"].run(parrot, DataSource(tmp_path), None, None)
    head = "Read the passage and answer the question below.\n\n### Instruction:\n"
    assert parrot.prompts == [
        f"{head}Rivers.\n\n### Input:\nWhich?\n\n### Response:",
        f"{head}Hills.\n\n### Input:\nWhich?\n\n### Response:",
    ]
    assert result.metrics == {"exact_match": 50.0, "f1": 75.0}  # "the Nile" has three words: the space is one


def test_ceval_asks_as_the_harness_does_and_counts_by_category(tmp_path: Path) -> None:
    row = {
        "subject": "law",
        "question": " 问题？ ",
        "A": "甲",
        "B": "乙",
        "C": "丙",
        "D": "丁",
        "answer": "B",
    }
    put(
        tmp_path,
        "ceval/val.jsonl",
        row,
        {**row, "subject": "logic", "answer": "A"},
        {**row, "subject": "marxism"},
    )
    parrot = Parrot({" B": -1.0, " C": -2.0})
    result = CEval().run(parrot, DataSource(tmp_path), None, None)
    context = "以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n问题？\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案："
    assert parrot.pairs[:4] == [(context, f" {letter}") for letter in "ABCD"]
    assert result.metrics["accuracy"] == pytest.approx(200 / 3)
    assert result.details["categories"]["Humanities"] == {"accuracy": 50.0, "interval_95": (0.0, 100.0), "n": 2}
    assert len(SUBJECTS) == 52
    put(tmp_path, "ceval/val.jsonl", {**row, "subject": "astrology"})
    with pytest.raises(DataError, match="'astrology' is none of"):
        CEval().load(DataSource(tmp_path))


def test_ceval_puts_the_subject_s_own_examples_before_the_question(tmp_path: Path) -> None:
    row = {"subject": "law", "question": "Q", "A": "a", "B": "b", "C": "c", "D": "d", "answer": "B"}
    examples = [{**row, "question": f" E{n} ", "answer": "ABCDA"[n]} for n in range(5)]
    others = [{**example, "subject": "logic"} for example in examples]
    put(tmp_path, "ceval/val.jsonl", row)
    put(tmp_path, "ceval/dev.jsonl", *others, *examples, {**row, "question": "a sixth"})
    parrot = Parrot({" B": -1.0})
    task = TASKS["ceval/5-shot"]
    assert task.run(parrot, DataSource(tmp_path), None, None).metrics == {"accuracy": 100.0}
    choices = "A. a\nB. b\nC. c\nD. d\n答案："
    shown = "".join(f"E{n}\n{choices} {letter}\n\n" for n, letter in enumerate("ABCDA"))
    head = "以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n"
    assert parrot.pairs[0] == (f"{head}{shown}Q\n{choices}", " A")
    put(tmp_path, "ceval/dev.jsonl", *others)
    with pytest.raises(DataError, match="'law' has 0 examples, and 5 are asked for"):
        task.load(DataSource(tmp_path))
    put(tmp_path, "ceval/dev.jsonl", {**row, "answer": "E"})
    with pytest.raises(DataError, match="ceval's examples, row 1: the answer must be a letter"):
        task.load(DataSource(tmp_path))


@pytest.mark.parametrize("name", list(TASKS))
def test_a_registered_task_has_its_own_name_and_a_protocol(name: str) -> None:
    assert TASKS[name].name == name
    assert "@" in TASKS[name].protocol


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if LanguageModel in task.models])
def test_a_registered_task_runs_on_the_real_data(
    name: str, stories: LanguageModel, data_dir: Path, tmp_path: Path
) -> None:
    if name == "text" and not (data_dir / "text").is_dir():
        (tmp_path / "text").mkdir()
        (tmp_path / "text/heldout.txt").write_text("Once upon a time there was a small cat. " * 200)
        data_dir = tmp_path
    steps: list[tuple[str, int, int]] = []
    evaluation = evaluate(stories, [name], data_dir, 4, lambda *step: steps.append(step))
    result = evaluation.results[name]
    assert result.n == 4
    assert steps[-1] == (name, 4, 4)
    assert all(math.isfinite(value) for value in result.metrics.values())
    for metric, item in result.details["items"].items():
        low, high = result.details["interval_95"][metric]
        assert len(item["values"]) == 4
        assert low <= result.metrics[metric] <= high
    json.dumps(evaluation.to_dict(), allow_nan=False)


@pytest.mark.data
def test_the_real_model_s_perplexity_on_stories_is_the_published_one(stories: LanguageModel, data_dir: Path) -> None:
    result = TINYSTORIES.run(stories, DataSource(data_dir), None, None)
    assert result.n == 200
    assert 3.55 < result.metrics["perplexity"] < 3.75


@pytest.mark.data
def test_the_local_boolq_file_has_the_published_share_of_true_answers(data_dir: Path) -> None:
    questions = BoolQ().load(DataSource(data_dir))
    assert len(questions) == 3270
    assert sum(question.answer for question in questions) / 3270 == pytest.approx(0.6217, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "file", "row", "said"),
    [
        ("boolq", "boolq/val.jsonl", {"passage": None, "question": "q", "label": 1}, "passage must be text, not None"),
        ("boolq/goldenstick", "boolq/val.jsonl", {"passage": "p", "question": [], "label": 1}, "question must be text"),
        ("ceval", "ceval/val.jsonl", dict.fromkeys(("question", "answer", *"ABCD"), "A") | {"subject": []}, "subject"),
        ("squad/goldenstick", "squad/dev-v1.1.json", {"data": [{"title": ["t"], "paragraphs": [{"context": "c", "qas": [
            {"question": "q", "answers": [{"text": "a"}]}]}]}]}, "title must be text"),
        ("squad", "squad/dev-v1.1.json", {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [
            {"question": "q", "answers": [{"text": 5}]}]}]}]}, "answer to 'q' is no text"),
    ],
)  # fmt: skip
def test_a_field_that_is_no_text_is_named(task: str, file: str, row: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(json.dumps(row))
    with pytest.raises(DataError, match=said):
        TASKS[task].load(DataSource(tmp_path))
