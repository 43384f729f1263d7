"""What would fail behind a measurement is found before it, and what was measured is shown before it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.commands import Refused, run

COMMANDS = {
    "sensitivity -o": (
        "sensitivity reference -r rtn-w4a16-g32 -o",
        "goldstick.jobs.sensitivity.sensitivity.measure_sensitivity",
    ),
    "sensitivity --html": (
        "sensitivity reference -r rtn-w4a16-g32 --html",
        "goldstick.jobs.sensitivity.sensitivity.measure_sensitivity",
    ),
    "compare": ("compare reference reference --html", "goldstick.jobs.compare.side_by_side.compare_models"),
    "importance": ("importance reference -o", "goldstick.jobs.importance.measure.measuring_work"),
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


def test_a_file_that_exists_is_replaced_only_where_that_is_asked_for(
    command: list[str], assert_refused: Refused, tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    path = tmp_path if command[0] == "evaluate" else target
    for name in ("page.html", "report.html"):
        (tmp_path / name).write_text("theirs")
    assert_refused(*command, str(path), says=("exists already", "--overwrite"))
    assert {file.read_text() for file in tmp_path.iterdir()} == {"theirs"}
    assert "something was measured" in run(*command, str(path), "--overwrite").stderr
    if command[0] != "evaluate":
        (tmp_path / "link").symlink_to(target)
        for special in (tmp_path / "link", Path("/dev/null")):
            assert_refused(*command, str(special), "--overwrite", says=("is no plain file",))


def test_a_file_that_came_while_it_was_measured_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    monkeypatch.setattr("goldstick.core.json_files.check_writable", lambda *_, **__: page.write_text("theirs"))
    shown = run("compare", "reference", "reference", "--html", str(page))
    assert shown.exit_code == 1
    assert "came to exist in the meantime and was left alone" in shown.stderr
    assert page.read_text() == "theirs"


def test_a_page_that_goldstick_did_not_render_is_not_rendered_over(
    assert_refused: Refused, made: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(made, tmp_path / "out")
    assert run("report", str(directory)).exit_code == 0
    (directory / "report.html").write_text("theirs")
    assert_refused("report", str(directory), says=("report.html exists already", "--overwrite"))
    assert (directory / "report.html").read_text() == "theirs"
    assert run("report", str(directory), "--overwrite").exit_code == 0
    assert "theirs" not in (directory / "report.html").read_text()


def test_one_file_is_not_asked_for_twice(assert_refused: Refused, tmp_path: Path) -> None:
    same = str(tmp_path / "found")
    assert_refused("sensitivity", "reference", "-o", same, "--html", same, code=2, says=("same file",))


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
    monkeypatch.setattr("goldstick.core.json_files.check_writable", lambda *_, **__: None)
    shown = run("compare", "reference", "reference", "--html", str(tmp_path / "none" / "page.html"))
    assert shown.exit_code == 1
    assert "the models never part" in shown.stdout
