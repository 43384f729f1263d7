"""Token KL and agreement against loops over single tokens in Python's floats."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from goldstick.errors import QuantizationError, UsageError
from goldstick.evaluation import DataSource, LanguageModel
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.kl import token_kl


def slow_log_softmax(row: list[float]) -> list[float]:
    largest = max(row)
    norm = largest + math.log(math.fsum(math.exp(value - largest) for value in row))
    return [value - norm for value in row]


def slow_kl(first: list[float], second: list[float]) -> float:
    log_p, log_q = slow_log_softmax(first), slow_log_softmax(second)
    return math.fsum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))


def test_token_kl_equals_a_loop_over_the_vocabulary() -> None:
    first, second = 4 * torch.randn(3, 5, 70), 4 * torch.randn(3, 5, 70)
    second[0] = first[0] + 1e-3 * torch.randn(5, 70)
    found = token_kl(first, second)
    assert found.shape == (3, 5)
    assert found.dtype == torch.float64
    for row in range(3):
        for column in range(5):
            slow = slow_kl(first[row, column].tolist(), second[row, column].tolist())
            assert float(found[row, column]) == pytest.approx(slow, rel=1e-9, abs=1e-15)


def test_token_kl_is_zero_for_equal_models_and_finite_where_a_token_is_impossible() -> None:
    logits = torch.randn(4, 30)
    assert torch.equal(token_kl(logits, logits.clone()), torch.zeros(4, dtype=torch.float64))
    masked, other = logits.clone(), logits.clone()
    masked[:, 0] = other[:, 0] = -math.inf
    assert bool(token_kl(masked, other).isfinite().all())
    assert bool(token_kl(logits, other).isinf().all())
    assert bool(token_kl(logits * math.nan, other).isnan().all())


@pytest.fixture
def data(tmp_path: Path) -> DataSource:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/heldout.txt").write_text("the cat sat on the mat. " * 20)
    (tmp_path / "tinystories").mkdir()
    stories = "\n".join(f'{{"part": "test", "text": "{"a longer story " * i}."}}' for i in range(1, 6))
    (tmp_path / "tinystories/stories.jsonl").write_text(stories)
    return DataSource(tmp_path)


@pytest.fixture
def rounded(tiny_model: Any, byte_tokenizer: Any) -> LanguageModel:
    model = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 4).round() / 4)
    return LanguageModel(model, byte_tokenizer)


def test_divergence_equals_a_loop_over_documents_and_tokens(
    language_model: LanguageModel, rounded: LanguageModel, data: DataSource
) -> None:
    found = divergence(language_model, rounded, ["tinystories"], data)["tinystories"]
    sums, agreed, tokens = [], 0, 0
    for index in range(1, 6):
        ids = language_model.encode("a longer story " * index + ".")
        with torch.no_grad():
            right, tried = (m.model(input_ids=torch.tensor([ids])).logits[0] for m in (language_model, rounded))
        for position in range(len(ids) - 1):
            sums.append(slow_kl(right[position].tolist(), tried[position].tolist()))
            agreed += int(right[position].argmax() == tried[position].argmax())
            tokens += 1
    assert found["metrics"]["token_kl"] == pytest.approx(math.fsum(sums) / tokens, rel=1e-5)
    assert found["metrics"]["top1_agreement"] == pytest.approx(100 * agreed / tokens)
    assert found["details"]["tokens_predicted"] == tokens
    assert found["protocol"].startswith("documents@96")
    low, high = found["details"]["interval_95"]["token_kl"]
    assert low < found["metrics"]["token_kl"] < high


def test_a_model_does_not_diverge_from_itself(language_model: LanguageModel, data: DataSource) -> None:
    found = divergence(language_model, language_model, ["boolq", "text"], data)
    assert list(found) == ["text"]
    assert found["text"]["metrics"] == {"token_kl": 0.0, "top1_agreement": 100.0}


def test_models_with_different_tokenizers_are_refused(
    language_model: LanguageModel, tiny_model: Any, byte_tokenizer: Any, data: DataSource
) -> None:
    other = copy.deepcopy(byte_tokenizer)
    other.add_tokens(["harbour"])
    with pytest.raises(UsageError, match="different tokenizers"):
        divergence(language_model, LanguageModel(tiny_model, other), ["text"], data)


def test_a_model_that_computes_nan_is_an_error(
    language_model: LanguageModel, rounded: LanguageModel, data: DataSource
) -> None:
    with torch.no_grad():
        rounded.model.model.norm.weight.fill_(math.nan)  # type: ignore[union-attr]
    with pytest.raises(QuantizationError, match="NaN"):
        divergence(language_model, rounded, ["text"], data)
