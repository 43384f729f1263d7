"""Calibration data that cannot be used: one readable paragraph, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldstick.errors import UsageError
from tests.support.commands import Refused, run
from tests.support.tiny_tokenizer import write_tokenizer

CHAT = json.dumps({"messages": [{"role": "user", "content": "sing"}]}) + "\n"


@pytest.fixture
def source(source: Path) -> Path:
    """A checkpoint with a tokenizer."""
    write_tokenizer(source)
    return source


def calibrate(source: Path, name: str, content: str | bytes, *options: str) -> tuple[str, ...]:
    """The arguments of a calibrated quantization of ``source`` on a file beside it, which is written here."""
    file = source.parent / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    recipe = source.parent / "recipe.yaml"
    recipe.write_text("stages: [{gptq: {scheme: w4a16-g32}}]")
    arguments = ("quantize", str(source), "-o", str(source.parent / "out"), "--recipe", str(recipe))
    return (*arguments, "--dataset", str(file), "--samples", "2", "--seq-len", "8", *options)


def test_a_model_without_a_tokenizer(assert_refused: Refused, source: Path) -> None:
    for path in source.glob("tokenizer*"):
        path.unlink()
    assert_refused(*calibrate(source, "a.txt", "words"), says=("tokenizer", "cannot be read"))


def test_too_little_text(assert_refused: Refused, source: Path) -> None:
    ways_out = ("--samples 1", "--seq-len", "--allow-short")
    assert_refused(*calibrate(source, "a.txt", "eight is"), says=("a.txt gives 1 windows of 8 tokens", *ways_out))
    assert_refused(*calibrate(source, "a.txt", " \n "), says=("a.txt gives 0 windows",))


def test_too_few_rows(assert_refused: Refused, source: Path) -> None:
    arguments = calibrate(source, "a.jsonl", '{"text": "one"}\n{"text": " "}\n', "--no-packing")
    assert_refused(*arguments, says=("a.jsonl gives 1 rows with tokens", "--samples 1", "--allow-short"))


def test_a_row_without_a_field_that_counts(assert_refused: Refused, source: Path) -> None:
    arguments = calibrate(source, "a.jsonl", '{"text": "one"}\n{"story": "two"}\n')
    assert_refused(*arguments, says=("a.jsonl, line 2", "'messages'", "only story", "--text-field"))
    assert_refused(*arguments, "--text-field", "story", says=("a.jsonl, line 1", "no field 'story'", "only text"))


def test_a_line_that_is_no_json(assert_refused: Refused, source: Path) -> None:
    assert_refused(*calibrate(source, "a.jsonl", '{"text": "one"}\n{"text"\n'), says=("a.jsonl, line 2", "not JSON"))


def test_a_file_that_is_no_text(assert_refused: Refused, source: Path) -> None:
    assert_refused(*calibrate(source, "a.txt", b"\xff\xfe\x00"), says=("a.txt", "not UTF-8"))


def test_a_file_that_is_no_parquet(assert_refused: Refused, source: Path) -> None:
    assert_refused(*calibrate(source, "a.parquet", '{"text": "one"}'), says=("a.parquet", "cannot be read as parquet"))


def test_a_conversation_for_a_model_that_is_not_for_chat(assert_refused: Refused, source: Path) -> None:
    assert_refused(*calibrate(source, "a.jsonl", CHAT), says=("a.jsonl, line 1", "no chat template", source.name))


def test_a_chat_template_that_is_broken(assert_refused: Refused, source: Path) -> None:
    write_tokenizer(source, chat_template="{% for message in messages %}")
    assert_refused(
        *calibrate(source, "a.jsonl", CHAT), says=("a.jsonl, line 1", "chat_template.jinja refuses", "in line 1")
    )


def test_a_tokenizer_of_another_model(assert_refused: Refused, source: Path) -> None:
    write_tokenizer(source, too_many=3)
    says = (source.name, "gives token id", "LlamaForCausalLM", "128 rows", "tokenizer files")
    assert_refused(*calibrate(source, "a.txt", "<128>" * 16), says=says)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calibration settings of what would have been quantized."""
    found: list[dict[str, Any]] = []

    def note(model: str, recipe: Any, **_: Any) -> None:
        found.append(recipe.calibration.model_dump())
        raise UsageError("noted")

    monkeypatch.setattr("goldstick.api.quantize", note)
    return found


def test_the_options_reach_the_recipe(source: Path, asked: list[dict[str, Any]]) -> None:
    run(
        *calibrate(
            source, "a.jsonl", "", "--no-packing", "--allow-short", "--text-field", "story", "--random-tokens", "0.5"
        )
    )
    run(*calibrate(source, "a.jsonl", "", "--packing"))
    given = {"dataset": str(source.parent / "a.jsonl"), "samples": 2, "seq_len": 8, "seed": 0, "training_batch": 8}
    assert asked == [
        {**given, "text_field": "story", "packing": False, "random_tokens": 0.5, "allow_short": True},
        {**given, "text_field": None, "packing": True, "random_tokens": 0.0, "allow_short": False},
    ]


def test_options_that_are_not_given_leave_the_recipes_own(source: Path, asked: list[dict[str, Any]]) -> None:
    arguments = calibrate(source, "a.jsonl", "")
    own = {"packing": False, "allow_short": True, "text_field": "story"}
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": own}
    (source.parent / "recipe.yaml").write_text(json.dumps(recipe))
    run(*arguments)
    assert asked[0].items() >= own.items()
