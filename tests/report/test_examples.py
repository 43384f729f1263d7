"""Examples on pages and in the terminal: escaped, marked where they part, counted."""

from __future__ import annotations

import json
from typing import Any

from goldstick.report.examples_view import examples_lines, examples_view
from goldstick.report.page import render_report
from tests.support.pages import check_alone
from tests.support.report_content import LAYERS, evaluation, report


def example(before: str, after: str, **changes: Any) -> dict[str, Any]:
    return {"task": "text", "item": "given", "expected": None, "before": before, "after": after, **changes}


HOSTILE = example("the red <b>fox</b>", "the red <script>alert(1)</script>", item="<i>", expected="&amp;", task="a<b")


def test_the_words_in_which_two_answers_part_are_marked_to_their_end() -> None:
    same, apart, shorter = (
        example("a cat", "a cat"), example("a cat sat here", "a car sat here"), example("one two", "one two three"),
    )  # fmt: skip
    found = examples_view([same, apart, shorter])
    assert found is not None
    assert found["words"] == "1 of 3 answers the same before and after"
    parts = [(row["shared"], row["before"], row["after"], row["same"]) for row in found["rows"]]
    assert parts[0] == ("a cat", "", "", True)
    assert parts[1] == ("a ", "cat sat here", "car sat here", False)
    assert parts[2] == ("one ", "two", "two three", False)
    assert examples_view([]) is None


def test_the_pages_of_a_compression_and_of_an_evaluation_show_them_escaped() -> None:
    sides = {"before": evaluation([1.0, 0.0] * 50), "after": evaluation([1.0, 1.0, 0.0, 0.0] * 25)}
    shown = [HOSTILE, example("yes", "yes")]
    compression = render_report(report(*LAYERS, evaluation={**sides, "examples": shown}))
    evaluated = render_report(json.dumps(sides["after"] | {"baseline": sides["before"], "examples": shown}))
    for html in (compression, evaluated):
        page = check_alone(html)
        for words in ("Examples", "1 of 2 answers the same before and after", "<script>alert(1)</script>", "&amp;"):
            assert words in page.text
        assert "<script>alert" not in html
        assert "the red <mark>&lt;b&gt;fox&lt;/b&gt;</mark>" in html
    without = render_report(json.dumps(sides["after"] | {"baseline": sides["before"]}))
    assert "Examples" not in without


def test_the_terminal_has_a_line_for_each_answer() -> None:
    assert [*examples_lines([example("a\nb", "c", task=None, expected="a")])] == [
        "prompt: 'given'", "  before: 'a\\nb'", "  after: 'c'", "  expected: 'a'",
        "0 of 1 answer the same before and after",
    ]  # fmt: skip
