"""The answers of both models in what `evaluate --baseline` and `quantize --evaluate` print and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Refused, run

QUICK = ("--tasks", "boolq", "--limit", "2", "--no-cache")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference model in 2 bits, evaluated."""
    output = tmp_path_factory.mktemp("small") / "out"
    words = ("-r", "rtn-w2a16-g32", "--proof", "tensors", "--evaluate", "boolq", "--limit", "2", "--examples", "1")
    done = run("quantize", "reference", "-o", str(output), *words)
    assert done.exit_code == 0, done.output
    assert "of 1 answer the same before and after" in done.stdout
    return output


def test_quantize_puts_them_into_the_report_and_its_page(small: Path) -> None:
    (found,) = json.loads((small / "report.json").read_text())["evaluation"]["examples"]
    assert found["task"] == "boolq" and found["item"].endswith("Answer:")
    assert {found["before"], found["after"], found["expected"]} <= {"yes", "no"}
    assert "<h2>Examples</h2>" in (small / "report.html").read_text()


def test_evaluate_writes_them_prints_those_asked_for_and_leaves_them_out(small: Path, tmp_path: Path) -> None:
    done = run("evaluate", str(small), "--baseline", "reference", *QUICK, "--report", str(tmp_path / "pages"))
    assert done.exit_code == 0, done.output
    assert "of 2 answers the same before and after" in done.stdout  # there are no three
    assert len(json.loads((tmp_path / "pages" / "report.json").read_text())["examples"]) == 2
    prompts = run("evaluate", str(small), "--baseline", "reference", *QUICK, "--prompt", "The <i>island")
    assert prompts.exit_code == 0, prompts.output
    assert "prompt: 'The <i>island'\n  before: " in prompts.stdout
    none = run("evaluate", str(small), "--baseline", "reference", *QUICK, "--examples", "0", "--json")
    assert none.exit_code == 0, none.output
    assert "examples" not in json.loads(none.stdout)


def test_options_that_show_nothing_are_refused_or_noted(assert_refused: Refused, tmp_path: Path) -> None:
    assert_refused("evaluate", "reference", *QUICK, "--prompt", "x", code=2, says=("--baseline",))
    both = ("--examples", "1", "--prompt", "x")
    assert_refused("evaluate", "reference", "--baseline", "reference", *QUICK, *both, code=2, says=("in the place of",))
    blank = ("quantize", "reference", "-o", str(tmp_path / "out"), "--evaluate", "boolq", "--prompt", " ")
    assert_refused(*blank, code=2, says=("nothing to go on from",))
