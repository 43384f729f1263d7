"""Too little text: a message names settings of the command, or of the function, that was given, and each helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import goldstick
from goldstick.errors import ShortageError
from goldstick.jobs.save import finish
from tests.support.commands import run
from tests.support.proofs import prove_here
from tests.support.tiny_tokenizer import write_tokenizer

SEARCH = "--schemes w4a16-g32,w8a16-channel --effort fast --share 80%"

COMMANDS = {
    "quantize": ("quantize MODEL -r gptq-w4a16-g32 --seq-len 16 --dataset TEXT -o OUT", True),
    "importance": ("importance MODEL --seq-len 16 --dataset TEXT -o OUT.gguf", True),
    "sensitivity": ("sensitivity MODEL -r rtn-w4a16-g32 --bits 4 --seq-len 16 --samples 40 --dataset TEXT", False),
    "compare": ("compare MODEL MODEL --seq-len 16 --samples 40 --dataset TEXT", False),
    "search": (f"search MODEL {SEARCH} --method rtn --seq-len 16 --dataset TEXT -o OUT.yaml", False),
    "search --held-out": (
        f"search MODEL {SEARCH} --method rtn --seq-len 16 --dataset TEXT --held-out TEXT -o OUT.yaml",
        False,
    ),
    "search, calibrated": (
        f"search MODEL {SEARCH} --held-out-rows 2 --samples 2 --seq-len 16 --dataset TEXT -o OUT.yaml",
        True,
    ),
    "quantize --share": (f"quantize MODEL {SEARCH} --method rtn --search-seq-len 16 --dataset TEXT -o OUT", False),
    "quantize --share, calibrated": (
        f"quantize MODEL {SEARCH} --held-out-rows 2 --search-samples 2 --search-seq-len 16 --seq-len 16 "
        "--dataset TEXT -o OUT",
        True,
    ),
    "sensitivity --recipe-for-size": (
        "sensitivity MODEL -r rtn-w4a16-g32 --bits 4,8 --recipe-for-size 80% --seq-len 16 --dataset TEXT",
        False,
    ),
}


@pytest.fixture
def folder(source: Path) -> Path:
    """A folder with a checkpoint that has a tokenizer, and 400 tokens of text."""
    write_tokenizer(source)
    (source.parent / "text.txt").write_text("The harbour lies on the north side of the isle. " * 8 + "It is old.")
    return source.parent


@pytest.mark.parametrize(("line", "goes_on"), COMMANDS.values(), ids=COMMANDS)
def test_each_option_that_a_message_names_helps(
    line: str, goes_on: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)

    def arguments(out: str) -> list[str]:
        words = line.replace("MODEL", str(folder / "llama")).replace("TEXT", str(folder / "text.txt"))
        return words.replace("OUT", str(folder / out)).split()

    said = run(*arguments("out")).stderr
    assert (" are asked for" in said) and "calibration:" not in said, said
    ways = re.findall(r"--[a-z-]+(?: (?!or)\w+)?(?: with --[a-z-]+ \w+)?", said[said.index(": use ") :])
    assert len(ways) >= 2
    assert ("--allow-short" in ways) == goes_on
    for number, way in enumerate(ways):
        tried = run(*arguments(f"out{number}"), *way.replace(" with ", " ").split())
        assert tried.exit_code == 0, (way, tried.output)


def test_a_recipe_of_which_a_command_has_no_options_is_named(folder: Path) -> None:
    model, text = str(folder / "llama"), str(folder / "text.txt")
    recipe = folder / "recipe.yaml"
    recipe.write_text("stages: [{gptq: {scheme: w4a16-g32}}]\ncalibration: {samples: 99, seq_len: 16}")
    options = ("--bits", "4,8", "--recipe-for-size", "80%", "--held-out-rows", "2", "--samples", "2", "--seq-len", "16")
    asked = ("sensitivity", model, "-r", str(recipe), "--dataset", text, *options)
    said = run(*asked).stderr
    assert "24 windows of 16 tokens, and 99 are asked for to calibrate the recipe on" in said
    assert "use samples: 24 under a recipe's calibration" in said
    recipe.write_text(recipe.read_text().replace("99", "24"))
    assert run(*asked).exit_code == 0


def test_functions_name_arguments(folder: Path) -> None:
    model, text = folder / "llama", str(folder / "text.txt")
    given = {"share": 0.8, "schemes": ("w4a16-g32", "w8a16-channel"), "effort": "fast", "dataset": text, "seq_len": 16}
    with pytest.raises(ShortageError, match=r"use samples=\d+ with held_out_rows=\d+, seq_len=5 or more text$"):
        goldstick.search(model, **given)
    with pytest.raises(ShortageError, match=r"calibration=\{'samples': 3\}.*\{'allow_short': True\} or method='rtn'$"):
        goldstick.search(model, **given, samples=2, held_out_rows=2)
    with pytest.raises(ShortageError, match=r"use samples: 3, seq_len: 3, more text or allow_short: true$"):
        goldstick.quantize(
            model,
            {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": {"dataset": text}},
            output=folder / "out",
        )
