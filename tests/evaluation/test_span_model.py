"""Answers that are parts of a text: against loops over all windows and spans, one forward pass at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast

from goldstick.errors import QuantizationError, UsageError
from goldstick.evaluation import LanguageModel, SpanModel, evaluate, measurable
from goldstick.evaluation.span_model import best_span
from goldstick.evaluation.tasks.squad import Squad

WORDS = [f"w{number}" for number in range(40)]
QUESTION = "w1 w2 w3"
TEXT = " ".join(WORDS[(7 * i * i + 3 * i) % 40] for i in range(150))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A token for each word."""
    vocabulary = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **named
    )


@pytest.fixture(scope="module")
def encoder() -> BertForQuestionAnswering:
    """A random encoder whose scores differ from place to place."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=44,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    return BertForQuestionAnswering(config).eval()


def slow_answer(model: Any, tokenizer: Any, question: str, text: str, window: int, overlap: int) -> str:
    """Every window by itself, every span of at most 30 words in it, with the text's words as tokens."""
    words, asked = text.split(" "), tokenizer(question, add_special_tokens=False)["input_ids"]
    known = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = window - len(asked) - 3
    best, answer, begin = -math.inf, "", 0
    while True:
        part = known[begin : begin + room]
        ids = [2, *asked, 3, *part, 3]
        types = [0] * (len(asked) + 2) + [1] * (len(part) + 1)
        with torch.no_grad():
            output = model(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        for s in range(len(part)):
            for e in range(s, min(s + 30, len(part))):
                place = len(asked) + 2
                score = float(output.start_logits[0, place + s]) + float(output.end_logits[0, place + e])
                if score > best + 1e-5:
                    best, answer = score, " ".join(words[begin + s : begin + e + 1])
        if begin + room >= len(known):
            return answer
        begin += room - overlap


def test_the_best_span_is_that_of_a_loop_over_all_spans() -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 31, 64):
        for longest in (1, 5, 30):
            start, end = torch.randint(-3, 4, (2, length), generator=generator).float()
            spans = [(s, e) for s in range(length) for e in range(s, min(s + longest, length))]
            expected = max(spans, key=lambda span: float(start[span[0]] + end[span[1]]))  # the first of equals
            assert best_span(start, end, longest)[1:] == expected


def test_answers_equal_a_loop_over_windows_and_spans(encoder: Any, tokenizer: Any) -> None:
    pairs = [(QUESTION, TEXT), ("w9", TEXT[:40].rsplit(" ", 1)[0]), ("w30 w31 w32 w33", TEXT[100:300].strip())]
    pairs[2] = (pairs[2][0], pairs[2][1].split(" ", 1)[1].rsplit(" ", 1)[0])
    for window, overlap in ((100, 20), (128, 0)):
        model = SpanModel(encoder, tokenizer, window=window, overlap=overlap)
        expected = [slow_answer(encoder, tokenizer, *pair, window, overlap) for pair in pairs]
        assert model.answer(pairs) == expected
        assert (
            SpanModel(encoder, tokenizer, window=window, overlap=overlap, tokens_per_batch=1).answer(pairs) == expected
        )
    assert len({*expected}) > 1


def test_the_window_is_no_longer_than_the_context(encoder: Any, tokenizer: Any) -> None:
    assert SpanModel(encoder, tokenizer, overlap=16).window == 128
    assert SpanModel(encoder, tokenizer).overlap == 42, "a third of what is too short to share 128"
    pairs = [(QUESTION, TEXT)]
    assert SpanModel(encoder, tokenizer).answer(pairs) == SpanModel(encoder, tokenizer, overlap=42).answer(pairs)
    with pytest.raises(UsageError, match=r"share 120 leave no room beside a question of 64\.$"):
        SpanModel(encoder, tokenizer, overlap=120)
    with pytest.raises(UsageError, match=r"share 33 leave no room .* context is too short"):
        SpanModel(encoder, tokenizer, window=100)


def test_a_question_is_cut_and_an_empty_text_answered_with_nothing(encoder: Any, tokenizer: Any) -> None:
    model = SpanModel(encoder, tokenizer, overlap=16)
    long = " ".join(["w5"] * 500)
    assert model.answer([(long, TEXT)]) == model.answer([(" ".join(["w5"] * 64), TEXT)])
    assert model.answer([(QUESTION, "")]) == [""]


def test_progress_ends_with_all_questions(encoder: Any, tokenizer: Any) -> None:
    steps: list[tuple[int, int]] = []
    model = SpanModel(encoder, tokenizer, overlap=16, tokens_per_batch=256)
    model.answer([(QUESTION, TEXT), (QUESTION, "w7 w8")], lambda *step: steps.append(step))
    assert len(steps) > 1
    assert steps[-1] == (2, 2)


def test_scores_that_are_no_numbers_are_an_error(encoder: Any, tokenizer: Any) -> None:
    damaged = BertForQuestionAnswering(encoder.config)
    torch.nn.init.constant_(damaged.qa_outputs.weight, math.nan)
    with pytest.raises(QuantizationError, match="NaN"):
        SpanModel(damaged, tokenizer, overlap=16).answer([(QUESTION, TEXT)])


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Two questions in the official layout; the second's answer is what the first's is not."""
    answers = [{"text": "w3 w13", "answer_start": 0}]
    questions = [{"id": str(n), "question": QUESTION, "answers": answers} for n in range(2)]
    paragraph = {"context": "w3 w13", "qas": questions[:1]}
    other = {"context": "w20", "qas": questions[1:]}
    (tmp_path / "squad").mkdir()
    document = {"version": "1.1", "data": [{"title": "Words", "paragraphs": [paragraph, other]}]}
    (tmp_path / "squad/dev-v1.1.json").write_text(json.dumps(document))
    return tmp_path


def test_squad_scores_the_part_that_a_span_model_gives(encoder: Any, tokenizer: Any, squad: Path) -> None:
    model = SpanModel(encoder, tokenizer, window=100, overlap=16)
    result = evaluate(model, ["squad"], squad).results["squad"]
    assert (result.protocol, result.n) == ("extractive@1, windows of 100", 2)
    first = model.answer([(QUESTION, "w3 w13")])[0]
    expected = {"w3 w13": (50.0, 50.0), "w3": (0.0, 100 / 3), "w13": (0.0, 100 / 3)}[first]
    assert result.metrics == {"exact_match": expected[0], "f1": pytest.approx(expected[1])}
    assert len(result.details["items"]["f1"]["values"]) == 2


def test_a_task_refuses_a_model_of_another_kind(
    encoder: Any, tokenizer: Any, squad: Path, language_model: LanguageModel
) -> None:
    model = SpanModel(encoder, tokenizer, overlap=16)
    with pytest.raises(UsageError, match="'boolq' measures a causal language model; this is an encoder with a span"):
        evaluate(model, ["squad", "boolq"], squad)
    with pytest.raises(UsageError, match="'cifar10' measures an image classifier; this is a causal language model"):
        evaluate(language_model, ["cifar10"])
    assert Squad.models == (LanguageModel, SpanModel)


def test_a_directory_s_model_is_measured_as_what_it_is(encoder: Any, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    wide = BertForQuestionAnswering(
        BertConfig(vocab_size=44, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    model = measurable(wide, tmp_path)
    assert isinstance(model, SpanModel)
    assert model.window == 384
    assert model.tokenizer_hash == SpanModel(encoder, tokenizer, overlap=16).tokenizer_hash
