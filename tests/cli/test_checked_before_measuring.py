"""What would fail behind a measurement is found before it, and what was measured is shown before it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import run

Refused = Callable[..., str]
COMMANDS = {
    "sensitivity -o": (
        "sensitivity reference -r rtn-w4a16-g32 -o",
        "goldstick.pipeline.sensitivity.measure_sensitivity",
    ),
    "sensitivity --html": (
        "sensitivity reference -r rtn-w4a16-g32 --html",
        "goldstick.pipeline.sensitivity.measure_sensitivity",
    ),
    "compare": ("compare reference reference --html", "goldstick.pipeline.side_by_side.compare_models"),
    "evaluate": ("evaluate reference --tasks text --report", "goldstick.api.evaluate"),
}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command up to the path that it writes to; it must not get as far as measuring."""
    arguments, measuring = COMMANDS[request.param]
    monkeypatch.setattr(measuring, _measured)
    return arguments.split()


def _measured(*_: object, **__: object) -> None:
    raise AssertionError("something was measured before the path was tried")


def test_a_path_that_cannot_be_written(command: list[str], assert_refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(*command, str(tmp_path / "file" / "found"), says=("found cannot be written", "directory"))
    if command[0] == "evaluate":
        assert_refused(*command, str(tmp_path / "file"), says=("file cannot be written", "directory"))
    else:
        assert_refused(*command, str(tmp_path), says=(f"{tmp_path} cannot be written", "directory"))
        assert_refused(*command, str(tmp_path / "none" / "found"), says=("found cannot be written", "directory"))


def test_a_report_is_not_written_over_that_of_a_checkpoint(
    assert_refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.api.evaluate", _measured)
    for name in ("goldstick.json", "report.json"):
        (tmp_path / name).write_text("{}")
    arguments = ("evaluate", "reference", "--tasks", "text", "--report", str(tmp_path))
    assert_refused(*arguments, says=(f"{tmp_path} is a checkpoint", "would be lost", "Name another directory"))
    assert (tmp_path / "report.json").read_text() == "{}"


def test_a_baseline_that_is_not_there(assert_refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldstick.api.evaluate", _measured)
    arguments = ("evaluate", "reference", "--tasks", "text", "--baseline")
    assert_refused(*arguments, str(tmp_path / "nowhere"), says=("There is no model directory", "nowhere"))
    (tmp_path / "empty").mkdir()
    assert_refused(*arguments, str(tmp_path / "empty"), says=("empty is not a model directory",))


def test_what_was_measured_is_shown_though_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.report.storage.check_writable", lambda *_, **__: None)
    shown = run("compare", "reference", "reference", "--html", str(tmp_path / "none" / "page.html"))
    assert shown.exit_code == 1
    assert "the models never part" in shown.stdout
