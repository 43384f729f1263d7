"""Two models writing side by side, against whole forward passes and against each model's own greedy text."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from goldstick.errors import UsageError
from goldstick.evaluation import LanguageModel
from goldstick.evaluation.generation import greedy
from goldstick.evaluation.kl import token_kl
from goldstick.evaluation.side_by_side_generation import generate_side_by_side

PROMPTS = [[1, 40, 41, 42], [1, 90, 91, 92], [1, 17, 5, 200]]


@pytest.fixture
def rounded(tiny_model: Any, byte_tokenizer: Any) -> LanguageModel:
    model = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.04 * torch.randn_like(parameter))
    return LanguageModel(model, byte_tokenizer)


def own_text(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    with torch.no_grad():
        (tokens,) = greedy(model.model, [prompt], count, (), lambda _: False, 0)
    return tokens


def test_kl_at_each_token_is_that_of_whole_forward_passes_on_the_first_model_s_text(
    language_model: LanguageModel, rounded: LanguageModel
) -> None:
    for prompt, found in zip(PROMPTS, generate_side_by_side(language_model, rounded, PROMPTS, 12), strict=True):
        text = own_text(language_model, prompt, 12)[: len(found.tokens)]
        assert found.tokens == text
        for place, kl in enumerate(found.kl):
            ids = torch.tensor([prompt + text[:place]])
            with torch.no_grad():
                right, tried = (one.model(input_ids=ids).logits[0, -1:] for one in (language_model, rounded))
            assert kl == pytest.approx(float(token_kl(right, tried)), rel=1e-3, abs=1e-9)


def test_the_texts_are_the_same_up_to_the_first_difference(
    language_model: LanguageModel, rounded: LanguageModel
) -> None:
    parted = 0
    for prompt, found in zip(PROMPTS, generate_side_by_side(language_model, rounded, PROMPTS, 12), strict=True):
        other = own_text(rounded, prompt, len(found.tokens))
        place = found.first_difference
        same = len(found.tokens) if place is None else place
        assert found.tokens[:same] == other[:same]
        if place is not None:
            parted += 1
            assert found.other_token == other[place] != found.tokens[place]
    assert parted > 0


def test_a_model_beside_itself_never_parts(language_model: LanguageModel) -> None:
    for found in generate_side_by_side(language_model, language_model, PROMPTS, 6):
        assert found.first_difference is None
        assert math.fsum(found.kl) == 0.0


def test_a_text_ends_at_its_end_token(tiny_model: Any, byte_tokenizer: Any) -> None:
    model = LanguageModel(tiny_model, byte_tokenizer)
    text = own_text(model, PROMPTS[0], 8)
    tiny_model.config.eos_token_id = text[2]
    (found, *_) = generate_side_by_side(model, model, PROMPTS, 8)
    assert found.tokens == text[: text.index(text[2]) + 1]


@pytest.mark.parametrize("prompts", [[[1, 2], [1, 2, 3]], [[1] * 90]])
def test_prompts_of_several_lengths_or_too_long_are_refused(
    language_model: LanguageModel, prompts: list[list[int]]
) -> None:
    with pytest.raises(UsageError, match="within the context of 96 tokens"):
        generate_side_by_side(language_model, language_model, prompts, 10)
