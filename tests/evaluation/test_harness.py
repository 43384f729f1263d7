"""Tasks of lm-evaluation-harness: its results as goldstick's, and, where it is installed, whole runs on local files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from goldstick.errors import DataError, UsageError
from goldstick.evaluation import DataSource, LanguageModel, compare, evaluate
from goldstick.evaluation.evaluate import Evaluation, find_tasks
from goldstick.evaluation.tasks.harness import HarnessTask, harness_result


def sample(number: int, **values: Any) -> dict[str, Any]:
    return {"doc_id": number, "filter": "none", **values}


def found(results: dict[str, Any], samples: list[dict[str, Any]], better: dict[str, bool]) -> dict[str, Any]:
    return {"results": {"t": results}, "samples": {"t": samples}, "higher_is_better": {"t": better}}


def test_a_score_is_in_percent_and_paired_by_question() -> None:
    samples = [sample(2, acc=1.0), sample(0, acc=0.0), sample(1, acc=1.0)]
    result = harness_result(
        found({"alias": "t", "acc,none": 2 / 3, "acc_stderr,none": 0.3}, samples, {"acc": True}), "p"
    )
    assert (result.n, result.metrics) == (3, {"acc": pytest.approx(200 / 3)})
    assert result.details["items"]["acc"]["values"] == [0.0, 1.0, 1.0]


def test_perplexities_of_texts_get_their_intervals_and_their_direction() -> None:
    likelihoods, words = [-30.0, -50.0], [10, 12]
    perplexity, bits = math.exp(80 / 22), 80 / 22 / math.log(2)
    samples = [
        sample(n, word_perplexity=(likelihoods[n], words[n]), bits_per_byte=(likelihoods[n], words[n])) for n in (0, 1)
    ]
    results = {"word_perplexity,none": perplexity, "bits_per_byte,none": bits, "odd,none": 5.0}
    result = harness_result(found(results, samples, {"word_perplexity": False, "odd": False}), "p")
    assert result.metrics == {
        "word_perplexity": pytest.approx(perplexity),
        "bits_per_byte": pytest.approx(bits),
        "odd": 5,
    }
    assert result.details["items"]["word_perplexity"]["exponential"]
    assert set(result.details["items"]) == {"word_perplexity", "bits_per_byte"}
    worse = harness_result(found({"odd,none": 6.0}, [], {"odd": False}), "p")
    odd = compare(Evaluation(results={"t": worse}, tokenizer=""), Evaluation(results={"t": result}, tokenizer=""))[0]
    assert (odd.metric, odd.direction) == ("odd", "lower")


def test_a_figure_that_questions_do_not_give_has_no_interval() -> None:
    result = harness_result(found({"f1,none": 0.7}, [sample(0, f1=0.1), sample(1, f1=0.2)], {"f1": True}), "p")
    assert result.metrics == {"f1": 0.7}
    assert result.details["items"] == {}


def test_tasks_of_a_group_and_filters_have_names_of_their_own() -> None:
    both = {
        "results": {"group": {"acc,none": 0.5}, "one": {"acc,none": 1.0}, "two": {"acc,strict": 0.0}},
        "samples": {"one": [sample(0, acc=1)], "two": [{**sample(0, acc=0), "filter": "strict"}]},
        "higher_is_better": {"one": {"acc": True}, "two": {"acc": True}},
    }
    result = harness_result(both, "p")
    assert result.metrics == {"group acc": 0.5, "one acc": 100.0, "two acc strict": 0.0}
    assert result.n == 2


def test_greedy_generation_would_give_exactly_what_is_said_to_be_greedy(language_model: LanguageModel) -> None:
    context = "The cat"
    ids = language_model.encode(context)
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(language_model.model(torch.tensor([ids])).logits[0, -1].argmax()))
    pairs = [(context, language_model.decode(ids)[len(context) :]), (context, " x"), (context, " sat on")]
    expected = language_model.continuation_log_likelihood(pairs)
    scores = language_model.continuation_scores(pairs)
    assert [value for value, _ in scores] == expected
    for (_, continuation), (_, greedy) in zip(pairs, scores, strict=True):
        known = language_model.encode(context)
        likeliest = True
        for token in language_model.encode(context + continuation)[len(known) :]:
            with torch.no_grad():
                likeliest &= token == int(language_model.model(torch.tensor([known])).logits[0, -1].argmax())
            known.append(token)
        assert greedy == likeliest


def test_without_the_harness_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, language_model: LanguageModel
) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("goldstick.evaluation.tasks.harness.version", missing)
    with pytest.raises(UsageError, match=r"lm_eval:boolq needs lm_eval, .* pip install 'goldstick\[eval\]'"):
        evaluate(language_model, ["lm_eval:boolq"])
    with pytest.raises(UsageError, match="no task 'lm_eval:'"):
        find_tasks(["lm_eval:"])


YAML = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {kind}
{body}
"""
CHOICE = """
doc_to_text: "{{passage}}\\nQuestion: {{question}}?\\nAnswer:"
doc_to_target: label
doc_to_choice: ["no", "yes"]
metric_list: [{metric: acc}]
metadata: {version: 3}
"""
GENERATED = """
doc_to_text: "{{question}}"
doc_to_target: "{{passage}}"
generation_kwargs: {until: ["e"], max_gen_toks: 5}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with two tasks of its own and BoolQ's file."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'goldstick[eval]'")
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hub"))
    rows = [{"passage": f"A{n} is {n}.", "question": f"is a{n} {n}", "label": n % 2} for n in range(6)]
    (tmp_path / "boolq").mkdir()
    file = tmp_path / "boolq" / "val.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "lm_eval").mkdir()
    for name, kind, body in (("local_choice", "multiple_choice", CHOICE), ("local_text", "generate_until", GENERATED)):
        (tmp_path / f"lm_eval/{name}.yaml").write_text(YAML.format(name=name, file=file, kind=kind, body=body))
    return tmp_path


@pytest.mark.slow  # the harness reads ten thousand files of tasks
@pytest.mark.filterwarnings("ignore")  # the harness's own
def test_the_harness_s_own_boolq_gives_what_boolq_gives(harness: Path, language_model: LanguageModel) -> None:
    steps: list[tuple[str, int, int]] = []
    tasks = ["lm_eval:local_choice", "boolq"]
    evaluation = evaluate(language_model, tasks, harness, progress=lambda *step: steps.append(step))
    theirs, ours = (evaluation.results[name] for name in tasks)
    assert theirs.details["items"]["acc"]["values"] == ours.details["items"]["accuracy"]["values"]
    assert (theirs.n, theirs.metrics["acc"]) == (6, ours.metrics["accuracy"])
    assert theirs.protocol.startswith("lm_eval@") and "local_choice version 3" in theirs.protocol
    assert ("lm_eval:local_choice", 6, 6) in steps
    json.dumps(evaluation.to_dict(), allow_nan=False)


@pytest.mark.slow  # the harness reads ten thousand files of tasks
@pytest.mark.filterwarnings("ignore")
def test_the_harness_generates_with_the_model(harness: Path, language_model: LanguageModel) -> None:
    result = evaluate(language_model, ["lm_eval:local_text"], harness, limit=3).results["lm_eval:local_text"]
    assert (result.n, result.metrics["exact_match"]) == (3, 0.0)


@pytest.mark.slow  # the harness reads ten thousand files of tasks
@pytest.mark.filterwarnings("ignore")
def test_a_task_that_is_not_there_or_lacks_its_data_is_named(harness: Path, language_model: LanguageModel) -> None:
    with pytest.raises(UsageError, match="has no task 'nonesuch'"):
        evaluate(language_model, ["lm_eval:nonesuch"], harness)
    (harness / "boolq/val.jsonl").unlink()
    with pytest.raises(DataError, match="lm_eval:local_choice: cannot be loaded"):
        HarnessTask(task="local_choice").load(DataSource(harness))


@pytest.mark.slow  # the harness reads ten thousand files of tasks
@pytest.mark.filterwarnings("ignore")
def test_requests_of_the_harness_are_answered_in_their_order(
    harness: Path, make_language_model: Callable[..., LanguageModel]
) -> None:
    from goldstick.evaluation.lm_eval_model import HarnessModel

    language_model = make_language_model()
    model = HarnessModel(language_model)

    def requests(*arguments: tuple[Any, ...]) -> list[Any]:
        return [SimpleNamespace(args=one) for one in arguments]

    asked = requests(("ab", {"until": "x"}), ("cd", {"until": ["y"], "max_gen_toks": 3}), ("ef", {"until": "x"}))
    expected = language_model.generate_greedy(["ab", "ef"], 90, ["x"])
    monkey = [SimpleNamespace(args=(one.args[0], {**one.args[1], "max_gen_toks": 90})) for one in asked]
    texts = model.generate_until([monkey[0], asked[1], monkey[2]])
    assert [texts[0], texts[2]] == expected
    assert texts[1] == language_model.generate_greedy(["cd"], 3, ["y"])[0]
    assert model.loglikelihood_rolling(requests(("abc",))) == language_model.text_log_likelihood(["abc"])
    with pytest.raises(UsageError, match="generates greedily"):
        model.generate_until(requests(("ab", {"temperature": 0.7})))
