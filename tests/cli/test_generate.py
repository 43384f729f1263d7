"""``goldstick generate``: prompts from everywhere, one or several, said to a model or gone on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

ENDS = "The harbour lies on the river Luna."


def generated(*words: str, said: str | bytes | None = None) -> str:
    result = run("generate", "reference", "--max-new-tokens", "5", *words, said=said)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """What each prompt becomes by itself."""
    return {prompt: generated("--prompt", prompt) for prompt in ("The harbour lies", "The island", "In the square")}


def test_several_prompts_become_what_each_becomes_alone(alone: dict[str, str], tmp_path: Path) -> None:
    several = [word for prompt in alone for word in ("--prompt", prompt)]
    assert generated(*several) == "\n".join(alone.values())
    (tmp_path / "prompts.txt").write_text("\n".join(alone) + "\n")
    assert generated("--prompts", str(tmp_path / "prompts.txt")) == "\n".join(alone.values())
    rows = [json.loads(line) for line in generated("--json", "--prompts", "-", said="\n".join(alone)).splitlines()]
    assert [row["prompt"] + row["text"] + "\n" for row in rows] == list(alone.values())
    assert {row["ending"] for row in rows} == {"length"}


def test_a_prompt_comes_from_standard_input(alone: dict[str, str]) -> None:
    assert alone["The harbour lies"] == f"{ENDS}\n"
    for words in ((), ("--prompt", "-")):
        assert generated(*words, said="The harbour lies\n") == alone["The harbour lies"]


def test_a_prompt_may_have_several_lines() -> None:
    assert generated(said="The island\nThe harbour lies\n").startswith("The island\nThe harbour lies on")


def test_an_answer_ends_before_a_stop_string(alone: dict[str, str]) -> None:
    assert generated("--prompt", "The harbour lies", "--stop", "Lu") == "The harbour lies on the river \n"


def test_what_is_said_goes_through_the_chat_template(alone: dict[str, str], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    words = ("--chat", "--chat-template", str(template), "--prompt", "harbour lies")
    assert generated(*words, "--system", "The ") == alone["The harbour lies"].removeprefix("The harbour lies")
    template.write_text("\n")
    assert "template.jinja is empty: give a chat template as text" in run("generate", "reference", *words).stderr


@pytest.mark.parametrize(
    ("words", "said", "says"),
    [
        (("--prompt", "a", "--system", "b"), None, "--system is for --chat"),
        (("--prompt", "a", "--chat-template", __file__), None, "--chat-template is for --chat"),
        (("--prompt", "a", "--chat"), None, "no chat template"),
        (("--prompts", "/nowhere"), None, "No such file"),
        (("--prompts", "-"), "", "holds no line"),
        (("--prompt", "a", "--stop", ""), None, "--stop: an empty text would end every answer"),
        ((), b"\xff\xfe", "not UTF-8"),
        (("--prompts", "-"), b"a\n\xff\n", "not UTF-8"),
        (("--prompt", "a", "--max-new-tokens", "512"), None, "max_new_tokens=512 must be within the context of 512"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], said: str | bytes | None, says: str) -> None:
    result = run("generate", "reference", *words, said=said)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_that_the_beginning_of_a_prompt_is_left_out_is_said(tmp_path: Path) -> None:
    result = run("generate", "reference", "--prompt", "river " * 600, "--max-new-tokens", "12")
    assert result.exit_code == 0
    assert "tokens, and the context room for its last 500 alone" in result.stderr
    (tmp_path / "template").write_text("{{ messages[0].content }}")
    said = ("--prompt", "river " * 600, "--chat", "--chat-template", str(tmp_path / "template"))
    result = run("generate", "reference", *said)
    assert result.exit_code == 2
    assert "more than the context of 512 holds together: shorten the prompt" in result.stderr


@pytest.mark.parametrize("ids", ["x", 2.0, [[2]], [2, None]])
def test_an_end_that_is_no_token_is_named(ids: object, tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    result = run("generate", str(tmp_path), "--prompt", "a")
    assert result.exit_code == 1
    assert f"eos_token_id of the GenerationConfig is {ids!r}, and tokens have whole numbers" in result.stderr


def test_settings_of_the_model_that_are_not_followed_are_named(tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    settings: dict[str, object] = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "num_beams": 1}

    def notes(command: str, *words: str) -> str:
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        result = run(command, str(tmp_path), *words, said="a")
        return next((line for line in result.stderr.splitlines() if "generation_config" in line), "")

    assert notes("generate", "--temperature", "0.5") == ""
    assert "asks for do_sample=True, temperature=0.6, which is not followed" in notes("generate")
    assert "asks for do_sample=True, temperature=0.6, which is not followed" in notes("chat")
    settings |= {"repetition_penalty": 1.1, "stop_strings": ["end"], "do_sample": False}
    named = "asks for repetition_penalty=1.1, stop_strings=['end'], which"
    assert named in notes("generate") and named in notes("generate", "--temperature", "0.5", "--top-p", "0.9")
