"""Progress: one bar for each job on a terminal, a line for each thing it comes to elsewhere."""

from __future__ import annotations

import pytest

from goldstick.cli.console import progress_bar


def test_lines_say_what_a_job_is_at_and_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(True) as progress:
        progress("writing", 0, 25)
        progress("writing", 1, 25)
        progress("calibrating model.layers.0", 0, 2)
        progress("calibrating model.layers.1: mlp.up_proj, output error 43% of rounding's", 1, 2)
        progress("proving", 0, 1)
    assert capsys.readouterr().err.splitlines() == [
        "writing (25)",
        "calibrating model.layers.0 (2)",
        "calibrating model.layers.1: mlp.up_proj, output error 43% of rounding's [1/2]",
        "proving",
    ]


def test_what_others_print_does_not_get_before_the_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(False) as progress:
        progress("writing", 0, 25)
        print("a task of the user's is at work")
    print("{}")
    assert capsys.readouterr() == ("{}\n", "a task of the user's is at work\n")


def test_a_terminal_has_one_bar_for_a_job_whatever_it_is_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    from rich.progress import Progress as Bars

    added: list[str] = []
    real = Bars.add_task

    def note(self: Bars, description: str, **options: object) -> object:
        added.append(description)
        return real(self, description, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Bars, "add_task", note)
    with progress_bar(True) as progress:
        for block in range(3):
            progress(f"calibrating model.layers.{block}", block, 3)
        progress("proving", 0, 1)
    assert added == ["calibrating model.layers.0", "proving"]
