"""Temporary folders go when their process ends, and what a killed process left goes later: its own and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from goldstick.core.temporary_folder import MARKER, is_in_use, temporary_folder
from goldstick.errors import OutputError

HOLDS = ("request.json", "inner/config.json")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal, sys, tempfile
from goldstick.core.temporary_folder import temporary_folder
tempfile.tempdir, *holds = sys.argv[1:]
with temporary_folder("trial", {holds}) as folder:
    (folder / "inner").mkdir()
    for name in holds:
        (folder / name).write_text("mine")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_a_killed_process(more: tuple[str, ...] = ()) -> Path:
    """The folder of a process that was killed while it used it."""
    command = [sys.executable, "-c", KILLED.replace("{holds}", repr(HOLDS)), str(tempfile.tempdir), *HOLDS, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    return Path(done.stdout.strip())


def clear() -> None:
    with temporary_folder("trial", HOLDS):
        pass


def test_a_folder_goes_at_the_end_and_on_an_error(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_folder("trial", HOLDS) as folder:
        (folder / "request.json").write_text("x")
        assert folder.stat().st_mode & 0o777 == 0o700
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next(place: Path) -> None:
    assert left_by_a_killed_process().is_dir()
    clear()
    assert list(place.iterdir()) == []


def test_a_folder_may_lie_elsewhere_and_what_a_killed_process_left_there_goes(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    left = left_by_a_killed_process()
    left.rename(elsewhere / left.name)
    with temporary_folder("trial", HOLDS, elsewhere) as folder:
        assert [path.name for path in elsewhere.iterdir()] == [folder.name]
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in place.iterdir()] == ["elsewhere"]
    with pytest.raises(OutputError, match="choose another output directory"), temporary_folder("a", (), place / "no"):
        pass


def test_a_folder_in_use_stays() -> None:
    with temporary_folder("trial", HOLDS) as folder:
        (folder / "request.json").write_text("x")
        clear()  # another lock of another open file, as another process would ask for
        assert (folder / "request.json").read_text() == "x"
        assert is_in_use(folder)
    assert not is_in_use(folder) and not is_in_use(left_by_a_killed_process())


def test_a_folder_with_something_else_inside_stays() -> None:
    folder = left_by_a_killed_process(more=("thesis.txt",))
    clear()
    assert (folder / "thesis.txt").read_text() == "mine"
    assert (folder / "request.json").read_text() == "mine"


@pytest.mark.parametrize("told", [None, "{}", "no JSON", '{"folder": "goldstick-trial-other", "holds": []}', "[]"])
def test_a_name_proves_nothing(place: Path, told: str | None) -> None:
    folder = place / "goldstick-trial-abc"
    folder.mkdir(mode=0o700)
    (folder / "request.json").write_text("a user's")
    if told is not None:
        (folder / MARKER).write_text(told)
    clear()
    assert (folder / "request.json").read_text() == "a user's"


def test_a_link_to_a_folder_that_was_left_stays_and_so_does_what_it_leads_to(place: Path, tmp_path: Path) -> None:
    left = left_by_a_killed_process()
    elsewhere = left.rename(tmp_path / "elsewhere")
    (place / left.name).symlink_to(elsewhere)
    clear()
    assert (place / left.name).is_symlink()
    assert (elsewhere / "request.json").read_text() == "mine"


def test_a_copy_under_another_name_and_one_that_others_may_write_stay(place: Path) -> None:
    copied = left_by_a_killed_process()
    copied = copied.rename(place / "goldstick-trial-copy")
    shared = left_by_a_killed_process()
    shared.chmod(0o777)
    clear()
    assert (copied / "request.json").exists()
    assert (shared / "request.json").exists()


def test_a_link_inside_counts_as_a_file_and_is_not_followed(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("a user's")
    folder = left_by_a_killed_process()
    (folder / "link").symlink_to(outside)
    clear()
    assert (folder / "link").is_symlink()
    marker = folder / MARKER
    marker.write_text(json.dumps({"folder": folder.name, "holds": [*HOLDS, "link"]}))
    clear()
    assert not folder.exists()
    assert (outside / "precious").read_text() == "a user's"


def test_no_room_for_temporary_files_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OutputError, match="TMPDIR"):
        clear()
