"""Special tokens that a tokenizer adds by itself: what is to go on keeps those in front, and none behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import processors
from torch import nn
from transformers import LlamaTokenizer

from goldstick.evaluation import LanguageModel
from goldstick.evaluation.tokenizer import special_tokens_around
from tests.support.served import served

MARKS = [("<s>", 1), ("</s>", 2)]
PAIRS = [
    ("Is water wet?\nAnswer:", " no"),
    ("short ", "x"),
    ("", "from nothing"),
    ("<s>begun", " already"),
    ("a context", ", and </s> named in it"),
]
PROMPTS = ["abc", "a rather longer prompt", "named </s>", ""]


@pytest.fixture
def framed(tiny_model: nn.Module, byte_tokenizer: Any) -> Callable[[str], LanguageModel]:
    """The tiny model, with a tokenizer that makes of each text what a template says."""

    def make(template: str) -> LanguageModel:
        tokenizer = copy.deepcopy(byte_tokenizer)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=MARKS
        )
        return LanguageModel(tiny_model, tokenizer)

    return make


@pytest.mark.parametrize(
    ("ended", "plain"), [("$A </s>", "$A"), ("<s> $A </s>", "<s> $A"), ("<s> $A </s> <s>", "<s> $A")]
)
def test_a_tokenizer_that_ends_each_text_scores_and_writes_as_one_that_does_not(
    framed: Callable[[str], LanguageModel], ended: str, plain: str
) -> None:
    model, expected = framed(ended), framed(plain)
    assert model.encode("abc") != expected.encode("abc")  # a text of its own ends as the tokenizer says
    for text in ("abc", "ends with </s>", "</s>", "<s>begun"):
        assert model.encode_prompt(text) == expected.encode(text)
    assert model.continuation_log_likelihood(PAIRS) == expected.continuation_log_likelihood(PAIRS)
    assert model.text_log_likelihood(PROMPTS[:3]) == expected.text_log_likelihood(PROMPTS[:3])
    assert model.generate_greedy(PROMPTS, 8) == expected.generate_greedy(PROMPTS, 8)


def test_a_tokenizer_that_adds_its_end_by_a_setting_is_found_out() -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4}
    for begins, ends in ((False, True), (True, True), (True, False), (False, False)):
        tokenizer = LlamaTokenizer(vocab=vocabulary, merges=[], add_bos_token=begins, add_eos_token=ends)
        assert special_tokens_around(tokenizer, "aa") == ([1] * begins, [2] * ends)


def test_tokens_behind_a_text_are_known_from_a_first_text_that_consists_of_them(
    framed: Callable[[str], LanguageModel],
) -> None:
    model = framed("<s> $A </s>")
    assert model.encode_prompt("") == [1]
    assert framed("$A </s>").encode_prompt("</s></s>") == [2, 2]


def test_prompts_of_the_server_do_not_end_in_the_end_token(framed: Callable[[str], LanguageModel]) -> None:
    model = framed("<s> $A </s>")
    with served(model) as server:
        status, answer = server.post("/v1/completions", prompt="abc", max_tokens=6, temperature=0)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 4)
    assert answer["choices"][0]["text"] == framed("<s> $A").generate_greedy(["abc"], 6)[0]
