"""Conversations through a chat template: the checkpoint's own, with nothing added and nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from goldstick.calibration.chat import chat_ids, read_messages
from goldstick.errors import DataError

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)
MESSAGES = read_messages([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "here")


def byte_tokenizer(template: str | None) -> Any:
    """One token per byte, and `<s>` before every text that is not a conversation."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=template)


def test_a_conversation_is_the_tokens_of_what_the_template_writes() -> None:
    tokenizer = byte_tokenizer(TEMPLATE)
    written = "[user]hi[assistant]yes"
    expected = [0, *tokenizer(written, add_special_tokens=False)["input_ids"]]
    assert chat_ids(tokenizer, MESSAGES, "here") == expected  # the template's own <s>, and no second one


def test_a_tokenizer_without_a_template_is_an_error_with_ways_out() -> None:
    with pytest.raises(DataError, match=r"a\.jsonl, line 3 is a conversation, .* no chat template: .* --text-field"):
        chat_ids(byte_tokenizer(None), MESSAGES, "a.jsonl, line 3")


def test_what_a_template_refuses_is_named() -> None:
    late = read_messages([{"role": "user", "content": "hi"}, {"role": "system", "content": "be kind"}], "here")
    with pytest.raises(DataError, match=r"line 3: the tokenizer's chat template refuses .*\(the system speaks first\)"):
        chat_ids(byte_tokenizer(TEMPLATE), late, "a.jsonl, line 3")


def test_other_fields_go_on_to_the_template_and_null_ones_do_not() -> None:
    (message,) = read_messages([{"role": "tool", "content": "42", "name": "sum", "tool_calls": None}], "here")
    assert message == {"role": "tool", "content": "42", "name": "sum"}
    (call,) = read_messages([{"role": "assistant", "content": None, "tool_calls": [{"name": "sum"}]}], "here")
    assert call == {"role": "assistant", "content": "", "tool_calls": [{"name": "sum"}]}


@pytest.mark.parametrize(("speaker", "role"), [("human", "user"), ("gpt", "assistant"), ("system", "system")])
def test_speakers_of_share_gpt_have_roles(speaker: str, role: str) -> None:
    assert read_messages([{"from": speaker, "value": "x"}], "here") == ({"role": role, "content": "x"},)
