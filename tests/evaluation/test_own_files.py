"""Tasks on files of the user's own: what they ask and measure, and what they say of rows that are wrong."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from goldstick.errors import DataError, UsageError
from goldstick.evaluation import (
    ChoiceFile,
    DataSource,
    Evaluation,
    LanguageModel,
    QuestionFile,
    SpanModel,
    TextFile,
    compare,
    evaluate,
)
from goldstick.evaluation.divergence import text_tasks
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.report.words import verdict


class Parrot(LanguageModel):
    """Gives prepared answers and writes down what it was asked."""

    def __init__(self, likelihoods: dict[str, float] | None = None, texts: list[str] | None = None) -> None:
        self.likelihoods, self.texts = likelihoods or {}, texts or []
        self.context_length = 512

    def continuation_log_likelihood(self, pairs: Any, advance: Any = None, places: Any = ()) -> list[float]:
        self.pairs = list(pairs)
        return [self.likelihoods.get(continuation.strip(), -99.0) for _, continuation in pairs]

    def generate_greedy(self, prompts: Any, max_new_tokens: int, stop: Any = (), *_: Any) -> list[str]:
        self.prompts, self.stop = list(prompts), list(stop)
        return self.texts[: len(prompts)]


def rows(path: Path, *given: Any) -> Path:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in given))
    return path


def run(task: Any, model: Any, limit: int | None = None) -> Any:
    return task.run(model, DataSource(), limit, None)


def test_a_text_is_scored_whole_in_windows_of_the_context_with_the_rest_at_the_end(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    text = "It was the best of times,\n\nit was the worst of times. " * 4
    path = tmp_path / "mine.txt"
    path.write_text(text)
    ids = language_model.encode(text)
    result = run(TextFile(path=path), language_model)
    windows = [ids[start : start + 96] for start in range(0, len(ids), 96)]
    nll = [-float(row.double().sum()) for row in language_model.token_log_probabilities(windows)]
    assert result.n == len(windows) == math.ceil(len(ids) / 96)
    assert result.metrics["perplexity"] == pytest.approx(math.exp(sum(nll) / (len(ids) - len(windows))))
    assert result.protocol.startswith("windows@96 (shortened from 2048: the model's context is 96), file ")
    assert run(TextFile(path=path), language_model, 1).n == 1


def test_rows_of_text_are_documents_of_their_own_also_compressed(language_model: LanguageModel, tmp_path: Path) -> None:
    path = rows(tmp_path / "mine.jsonl", {"text": "first"}, {"text": "second one", "id": 7})
    result = run(TextFile(path=path), language_model)
    assert (result.n, result.details["items"]["perplexity"]["weights"]) == (2, [5, 10])
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert run(TextFile(path=packed), language_model).metrics == result.metrics


def test_what_both_models_predict_is_compared_on_a_text_of_ones_own(tmp_path: Path) -> None:
    path = rows(tmp_path / "mine.txt", "words")
    choices = rows(tmp_path / "c.jsonl", {"question": "q", "choices": ["a", "b"], "answer": 0})
    assert list(text_tasks([f"text:{path}", f"choice:{choices}"])) == [f"text:{path}"]


def test_choices_follow_a_made_prompt_behind_a_space_and_a_given_one_as_they_are(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "c.jsonl",
        {"context": "Fire burns.", "question": "Is fire hot?", "choices": ["yes", "no"], "answer": "yes"},
        {"prompt": "水是", "choices": ["湿的", "干的"], "answer": "B"},
    )
    parrot = Parrot({"yes": -1.0, "no": -2.0, "湿的": -1.0, "干的": -3.0})
    result = run(ChoiceFile(path=path), parrot)
    made = "Fire burns.\n\nQuestion: Is fire hot?\nAnswer:"
    assert parrot.pairs == [(made, " yes"), (made, " no"), ("水是", "湿的"), ("水是", "干的")]
    assert (result.n, result.metrics["accuracy"], result.details["chance"]) == (2, 50.0, 50.0)
    assert result.details["items"]["accuracy"]["values"] == [1, 0]


def test_a_long_choice_is_no_disadvantage_where_its_length_counts(tmp_path: Path) -> None:
    row = {"question": "q?", "choices": ["a much longer answer", "no"], "answer": 0}
    parrot = Parrot({"a much longer answer": -8.0, "no": -2.0})  # 0.4 a character against 1
    metrics = run(ChoiceFile(path=rows(tmp_path / "c.jsonl", row)), parrot).metrics
    assert metrics == {"accuracy": 0.0, "accuracy_normalized": 100.0}


def test_both_accuracies_are_those_of_lm_evaluation_harness(
    tiny_model: LlamaForCausalLM, byte_tokenizer: Any, language_model: LanguageModel, tmp_path: Path
) -> None:
    """Its ``process_results``: argmax of ll, and of ll / len(choice), which counts characters, not bytes or tokens."""
    choices = ["水是", "abcdef", "äöü", "a  bcd", "0123456"]
    given = [{"question": f"{chr(97 + n)}?", "choices": choices[n % 3 :], "answer": n % 2} for n in range(12)]
    wanted: dict[str, list[int]] = {"accuracy": [], "accuracy_normalized": []}
    for row in given:
        context = byte_tokenizer(f"Question: {row['question']}\nAnswer:")["input_ids"]
        lls = []
        for choice in row["choices"]:
            continuation = byte_tokenizer(f" {choice}", add_special_tokens=False)["input_ids"]
            logits = tiny_model(torch.tensor([context + continuation])).logits[0].detach().double().log_softmax(-1)
            places = range(len(context) - 1, len(context) + len(continuation) - 1)
            lls.append(sum(float(logits[place, token]) for place, token in zip(places, continuation, strict=True)))
        lengths = np.array([float(len(choice)) for choice in row["choices"]])
        wanted["accuracy"].append(int(np.argmax(lls) == row["answer"]))
        wanted["accuracy_normalized"].append(int(np.argmax(lls / lengths) == row["answer"]))
    items = run(ChoiceFile(path=rows(tmp_path / "c.jsonl", *given)), language_model).details["items"]
    assert {name: items[name]["values"] for name in wanted} == wanted
    assert wanted["accuracy"] != wanted["accuracy_normalized"] and all(0 < sum(one) < 12 for one in wanted.values())


def test_a_choice_that_no_context_holds_is_refused_and_a_long_question_is_cut(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    most = language_model.context_length
    row = {"prompt": "q" * 2 * most, "choices": ["a" * most, "b"], "answer": 1}
    assert run(ChoiceFile(path=rows(tmp_path / "c.jsonl", row)), language_model).n == 1
    long = row | {"choices": ["a" * (most + 1), "b"]}
    says = rf"c.jsonl, line 2: 'aaa.*aaa' has {most + 1} tokens, and the model's context holds {most}, so"
    with pytest.raises(DataError, match=says):
        run(ChoiceFile(path=rows(tmp_path / "c.jsonl", row, long)), language_model)


@pytest.mark.parametrize("task", [ChoiceFile, QuestionFile, TextFile])
def test_a_key_that_a_row_gives_twice_is_named(task: Any, language_model: LanguageModel, tmp_path: Path) -> None:
    twice = '{"question": "q?", "text": "t", "choices": ["a", "b"], "answer": "a", "answer": "b", "text": "u"}'
    path = rows(tmp_path / "c.jsonl", {"question": "q?", "text": "t", "choices": ["a", "b"], "answer": "a"}, twice)
    with pytest.raises(DataError, match=r"c\.jsonl, line 2: .*the key '(answer|text)' occurs twice; leave one of them"):
        run(task(path=path), language_model)


def test_answers_in_words_are_normalised_and_the_best_of_several_counts(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "q.jsonl",
        {"question": "Who?", "answers": ["the King of Spain", "Philip"]},
        {"context": "It rains.", "question": "What falls?", "answer": "rain"},
        {"prompt": "Q: 1+1? A:", "answer": "2"},
    )
    parrot = Parrot(texts=[" King of Spain.", " rain water", " 3"])
    result = run(QuestionFile(path=path), parrot)
    assert parrot.prompts == [
        "Question: Who?\nAnswer:", "It rains.\n\nQuestion: What falls?\nAnswer:", "Q: 1+1? A:",
    ]  # fmt: skip
    assert parrot.stop == ["\n"]
    assert result.metrics["exact_match"] == pytest.approx(100 / 3)
    assert result.metrics["f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)


def test_a_span_model_answers_from_the_context_and_needs_one(tmp_path: Path) -> None:
    class Span(SpanModel):
        window = 384

        def __init__(self) -> None:
            pass

        def answer(self, pairs: Sequence[tuple[str, str]], *_: Any) -> list[str]:
            self.pairs = list(pairs)
            return ["rain"] * len(pairs)

    span = Span()
    row = {"context": "It rains rain.", "question": "What falls?", "answer": "rain"}
    result = run(QuestionFile(path=rows(tmp_path / "q.jsonl", row)), span)
    assert span.pairs == [("What falls?", "It rains rain.")]
    assert result.protocol.startswith("extractive@1, windows of 384, file ") and result.metrics["f1"] == 100.0
    path = rows(tmp_path / "q.jsonl", row, {"question": "What?", "answer": "x"})
    with pytest.raises(DataError, match=r"q\.jsonl, line 2: an encoder .* give question and context"):
        run(QuestionFile(path=path), span)


CHOICE = {"question": "q", "choices": ["a", "b"], "answer": 0}


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        ("choice", {"choices": ["a", "b"], "answer": 0}, r"no field 'question', only choices, answer"),
        ("choice", {"question": "q", "answer": 0}, r"no field 'choices', only question, answer"),
        ("choice", {"question": "q", "choices": ["a", "b"]}, r"no field 'answer', only question, choices"),
        ("choice", {**CHOICE, "question": 3}, r"question must be text, not 3"),
        ("choice", {**CHOICE, "question": "  "}, r"question is empty"),
        ("choice", {**CHOICE, "context": 3}, r"context must be text, not 3"),
        ("choice", {**CHOICE, "prompt": "p"}, r"prompt says all; leave question out"),
        ("choice", {**CHOICE, "choices": "ab"}, r"choices must be a list of two texts or more, not 'ab'"),
        ("choice", {**CHOICE, "choices": ["a"]}, r"choices must be a list of two texts or more"),
        ("choice", {**CHOICE, "choices": ["a", 4]}, r"choices, number 1, must be text, not 4"),
        ("choice", {**CHOICE, "choices": ["a", "a"]}, r"choices holds 'a' twice"),
        ("choice", {**CHOICE, "choices": ["a", " a"]}, r"choices holds ' a' twice"),
        ("choice", {**CHOICE, "answer": 2}, r"answer must be a number from 0 to 1, one of the choices, .* not 2"),
        ("choice", {**CHOICE, "answer": True}, r"answer must be .* not True"),
        ("choice", {**CHOICE, "answer": "C"}, r"answer must be .* a letter from A to B, not 'C'"),
        ("qa", {"question": "q"}, r"no field 'answer', only question"),
        ("qa", {"question": "q", "answer": 4}, r"answer must be text, not 4"),
        ("qa", {"question": "q", "answers": []}, r"answers must be a list of one text or more, not \[\]"),
        ("qa", {"question": "q", "answers": ["a", None]}, r"answers, number 2, must be text, not None"),
        ("qa", {"question": "q", "answer": "a", "answers": ["a"]}, r"give answer or answers, not both"),
        ("text", {"content": "words"}, r"no field 'text', only content"),
        ("text", {"text": ["words"]}, r"text must be text, not \['words'\]"),
        ("text", '{"text": "a', r"not JSON"),
        ("qa", "[1]", r"a row must be a JSON object, not list"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_file_line_and_field(
    kind: str, row: Any, said: str, tmp_path: Path
) -> None:
    good = {"choice": CHOICE, "qa": {"question": "q", "answer": "a"}, "text": {"text": "words"}}[kind]
    path = rows(tmp_path / "mine.jsonl", good, "", row)
    (task,) = find_tasks([f"{kind}:{path}"]).values()
    with pytest.raises(DataError, match=rf"mine\.jsonl, line 3: .*{said}"):
        task.load(DataSource())


@pytest.mark.parametrize("kind", ["choice", "qa", "text"])
def test_a_file_that_is_not_there_is_named_before_a_model_is_run(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{kind}:no\.jsonl: there is no file /.*no\.jsonl; a path counts from"):
        find_tasks([f"{kind}:no.jsonl"])
    with pytest.raises(DataError, match="is a folder; name a file in it"):
        find_tasks([f"{kind}:{tmp_path}"])
    with pytest.raises(UsageError, match=f"name the file behind the colon, such as {kind}:FILE"):
        find_tasks([f"{kind}:"])


def test_an_empty_file_and_a_file_without_its_kind_are_refused_with_the_remedy(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    path = rows(tmp_path / "mine.txt", " ")
    with pytest.raises(DataError, match="the file holds no text"):
        evaluate(language_model, [f"text:{path}"])
    with pytest.raises(DataError, match="the file holds no rows"):
        evaluate(language_model, [f"qa:{rows(tmp_path / 'q.jsonl')}"])
    with pytest.raises(UsageError, match=r"is a file; say what it is for: text:.*mine\.txt, qa:"):
        evaluate(language_model, [str(path)])


def test_results_on_a_changed_file_do_not_compare_and_equal_ones_get_a_verdict(tmp_path: Path) -> None:
    path = rows(tmp_path / "c.jsonl", *[{**CHOICE, "question": f"number {one}"} for one in range(40)])
    name = f"choice:{path}"

    def measured(best: str) -> Evaluation:
        results = {name: run(ChoiceFile(path=path), Parrot({best: -1.0}))}
        return Evaluation(results=results, tokenizer="t")

    right, wrong = measured("a"), measured("b")
    (row, _) = compare(wrong, right)
    assert (row.difference, row.shown) == (-100.0, True) and row.interval is not None
    assert verdict(row).startswith("loses 100")
    assert "no loss larger than" in verdict(compare(right, right)[0])
    rows(path, *[{**CHOICE, "question": f"another {one}"} for one in range(40)])
    (row, _) = compare(measured("a"), right)
    assert row.note is not None and row.note.startswith("protocols differ: loglik@1, file ")
