"""Conversations through a chat template: the checkpoint's own, with nothing added and nothing lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from goldstick.calibration.data import chat_template
from goldstick.calibration.data.chat import chat_ids, read_messages
from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.errors import DataError
from tests.support.time_limit import within
from tests.support.warm_processes import template_worker

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)
MESSAGES = read_messages([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "here")


@pytest.fixture(scope="module")
def templates() -> Iterator[ChatTemplates]:
    with ChatTemplates() as running:
        yield running


def byte_tokenizer(template: str | None) -> Any:
    """One token per byte, and `<s>` before every text that is not a conversation."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=template)


def test_a_conversation_is_the_tokens_of_what_the_template_writes(templates: ChatTemplates) -> None:
    tokenizer = byte_tokenizer(TEMPLATE)
    written = "[user]hi[assistant]yes"
    expected = [0, *tokenizer(written, add_special_tokens=False)["input_ids"]]
    assert chat_ids(tokenizer, MESSAGES, "here", templates) == expected  # the template's own <s>, and no second one


def test_a_tokenizer_without_a_template_is_an_error_with_ways_out(templates: ChatTemplates) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl, line 3 is a conversation, .* no chat template: .* --text-field"):
        chat_ids(byte_tokenizer(None), MESSAGES, "a.jsonl, line 3", templates)


def test_what_a_template_refuses_is_named(templates: ChatTemplates) -> None:
    late = read_messages([{"role": "user", "content": "hi"}, {"role": "system", "content": "be kind"}], "here")
    with pytest.raises(
        DataError, match=r"line 3: the chat template in use refuses .*the system speaks first, in line 1\)"
    ):
        chat_ids(byte_tokenizer(TEMPLATE), late, "a.jsonl, line 3", templates)


def test_other_fields_go_on_to_the_template_and_null_ones_do_not() -> None:
    (message,) = read_messages([{"role": "tool", "content": "42", "name": "sum", "tool_calls": None}], "here")
    assert message == {"role": "tool", "content": "42", "name": "sum"}
    (call,) = read_messages([{"role": "assistant", "content": None, "tool_calls": [{"name": "sum"}]}], "here")
    assert call == {"role": "assistant", "content": "", "tool_calls": [{"name": "sum"}]}


@pytest.mark.parametrize(("speaker", "role"), [("human", "user"), ("gpt", "assistant"), ("system", "system")])
def test_speakers_of_share_gpt_have_roles(speaker: str, role: str) -> None:
    assert read_messages([{"from": speaker, "value": "x"}], "here") == ({"role": role, "content": "x"},)


SOUND = [
    "{% for message in messages %}{{ message['content'] | trim }}{{ loop.index }}{% endfor %}",
    "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ messages | tojson(indent=2) }}{{ bos_token }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    "{% macro say(m) %}<{{ m.role | upper }}>{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "{{ 'é\u4e2d\U0001f600' }}{{ messages[-1].thinking }}{{ dict(a=1) }}",
    "a\n{% if true %}\n  b{% endif %}\n",
]


@pytest.mark.parametrize("template", SOUND)
def test_a_template_writes_what_transformers_has_it_write(template: str, templates: ChatTemplates) -> None:
    tokenizer = byte_tokenizer(template)
    expected = tokenizer.apply_chat_template([dict(message) for message in MESSAGES], tokenize=True, return_dict=False)
    assert chat_ids(tokenizer, MESSAGES, "here", templates) == expected


HOSTILE = {
    "a division by zero": ("\n\n{{ 1 / 0 }}", "ZeroDivisionError: division by zero, in line 3"),
    "a macro without end": ("{% macro f() %}\n{{ f() }}{% endmacro %}{{ f() }}", "RecursionError.*in line 2"),
    "a loop without end": (
        "\n{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "longer than SECONDS seconds, in line 2",
    ),
    "loops that write": (
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "longer than SECONDS seconds|MiB of memory",
    ),
    "a wide range": ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big.*in line 1"),
    "a long text": ("{{ 'a' * 10**9 }}", "MiB of memory|writes more than"),
    "a longer text": ("{{ 'a' * 10**12 }}", "MiB of memory"),
    "a text that is thrown away": ("{% set a = 'a' * 10**10 %}", "MiB of memory"),
    "a long list": ("{{ [0] * 10**9 }}", "MiB of memory"),
    "a great number": ("{{ 10 ** (10**10) }}", "longer than SECONDS seconds|MiB of memory"),
    "a number that takes long": (
        "{% for i in range(9999) %}{% set b = (i + 7) ** 300000 %}{% endfor %}",
        "longer than SECONDS seconds",
    ),
    "a number too long to be written": ("{{ 10**5000 }}", "ValueError: Exceeds the limit"),
    "a wide format": ("{{ '%1000000000d' % 1 }}", "MiB of memory|writes more than"),
    "a wide format of Python's": ("{{ '{:>10000000000}'.format(1) }}", "MiB of memory"),
    "a centered word": ("{{ 'a' | center(10**10) }}", "MiB of memory"),
    "an indented word": ("{{ 'a\nb' | indent(10**10) }}", "MiB of memory|longer than"),
    "a justified word": ("{{ 'a'.ljust(10**10) }}", "MiB of memory"),
    "words that replace": ("{{ ('a' * 10**5).replace('a', 'b' * 10**6) }}", "MiB of memory"),
    "a joined list": ("{{ range(99999) | join('a' * 10**6) }}", "MiB of memory"),
    "a text doubled in a loop": (
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "MiB of memory",
    ),
    "a text that holds itself": (
        "{% set n = namespace(a=messages) %}{% for i in range(9999) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
        "MiB of memory|longer than|Recursion",
    ),
    "spaces in JSON": ("{{ messages | tojson(indent=10**10) }}", "MiB of memory"),
    "a slow pattern of a filter": (
        "{% for i in range(99999) %}{{ ('a.' * 10**5) | urlize }}{% endfor %}",
        "longer than|MiB of memory",
    ),
    "pages of nonsense": ("{{ lipsum(n=10**8) }}", "longer than|MiB of memory|undefined"),
    "more than was asked for": (
        "{% for i in range(30000) %}{{ 'a' * 100 }}{% endfor %}",
        r"writes more than 1,\d{3},\d{3} characters",
    ),
    "what it raises itself": ("\n{{ raise_exception('no') }}", "TemplateError: no, in line 2"),
    "a very long excuse": ("{{ raise_exception('no' * 10**6) }}", "TemplateError: (no){10}"),
    "an unknown variable": ("{{ a.b.c }}", "UndefinedError.*in line 1"),
    "an unknown filter": ("{{ a | b }}", "No filter named 'b'"),
    "no end": ("{% for m in messages %}", "TemplateSyntaxError.*in line 1"),
    "a hundred thousand brackets": (
        "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
        "RecursionError|ended with code",
    ),
    "a hundred loops": (
        "{% for a in [1] %}" * 100 + "{% endfor %}" * 100,
        "IndentationError|SyntaxError",
    ),
    "a way out": ("{{ messages.__class__.__mro__ }}", "SecurityError|UndefinedError"),
    "a way out by format": ("{{ '{0.__class__.__init__.__globals__}'.format(messages) }}", "SecurityError|Error"),
    "a change": ("{{ messages.append(1) }}", "SecurityError"),
    "half of a character": ("{{ '\\ud800' }}", "surrogates not allowed"),
    "a nul": ("{{ '\0' }}{{ 1 / 0 }}", "ZeroDivisionError"),
    "another kind of template": ("{% include 'a' %}", "Error"),
}


@pytest.fixture(scope="module")
def impatient() -> Iterator[ChatTemplates]:
    """With a second for a conversation in the place of three, and processes that need not import everything first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "SECONDS", 1)
        patch.setattr(chat_template, "_started", lambda: template_worker(1))
        with ChatTemplates() as running:
            yield running


def test_a_conversation_has_three_seconds(templates: ChatTemplates) -> None:
    template, says = HOSTILE["a loop without end"]
    with within(seconds=30), pytest.raises(DataError, match=f"(?s:{says.replace('SECONDS', '3')})"):
        chat_ids(byte_tokenizer(template), MESSAGES, "here", templates)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_soon_and_the_next_is_written(name: str, impatient: ChatTemplates) -> None:
    template, says = HOSTILE[name]
    says = says.replace("SECONDS", "1")
    with within(seconds=30), pytest.raises(DataError, match=rf"here: the chat template in use refuses .*(?s:{says})"):
        chat_ids(byte_tokenizer(template), MESSAGES, "here", impatient)
    assert (
        chat_ids(byte_tokenizer("x"), MESSAGES, "here", impatient)
        == byte_tokenizer(None)("x", add_special_tokens=False)["input_ids"]
    )


def test_the_memory_that_templates_take_is_bounded(templates: ChatTemplates) -> None:
    for template in ("{{ 'a' * 2 * 10**8 }}", "{% set a = 'a' * 10**12 %}", "{{ [0] * 10**9 }}"):
        with pytest.raises(DataError):
            templates.write(template, MESSAGES, {})
    assert templates.write("x", MESSAGES, {}) == "x"
    worker = templates._worker
    assert worker is not None
    status = Path(f"/proc/{worker.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak"))
    assert peak < 2 * 2**20  # KiB


def test_the_process_of_templates_ends_with_them() -> None:
    with ChatTemplates() as running:
        running.write("x", MESSAGES, {})
        worker = running._worker
        assert worker is not None
    assert worker.returncode is not None


def test_the_file_that_a_template_lies_in_is_named(tmp_path: Path, templates: ChatTemplates) -> None:
    tokenizer = byte_tokenizer("{{ 1 / 0 }}")
    tokenizer.name_or_path = str(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match=rf"the chat template in {tmp_path}/tokenizer_config\.json refuses"):
        chat_ids(tokenizer, MESSAGES, "here", templates)
    (tmp_path / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(DataError, match=rf"the chat template in {tmp_path}/chat_template\.jinja refuses .*in line 1"):
        chat_ids(tokenizer, MESSAGES, "here", templates)
