"""What lies where a run wants to write, or comes to lie there while it runs, is nobody's to remove but its owner's."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from goldstick.checkpoint import working_directory
from goldstick.checkpoint.journal import WorkDirectory, work_directory
from goldstick.checkpoint.staging import check_output, refuse_overlap, staged
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.checkpoint.working_directory import held_file
from goldstick.core import rename
from goldstick.errors import OutputError

RUN = {"recipe": "1", "source": "2"}


def checkpoint(path: Path, content: str = "new") -> Path:
    """What a run leaves: a file, and a manifest that names it."""
    path.mkdir(exist_ok=True)
    (path / "weights").write_text(content)
    (path / MANIFEST_NAME).write_text(json.dumps({"files": {"weights": ""}}))
    return path


def in_one_go(output: Path, overwrite: bool) -> AbstractContextManager[Path]:
    return staged(output, overwrite)


def journalled(output: Path, overwrite: bool) -> AbstractContextManager[WorkDirectory]:
    return work_directory(output, RUN, resume=False, overwrite=overwrite)


Begin = Callable[[Path, bool], AbstractContextManager[Any]]
both = pytest.mark.parametrize("begin", [in_one_go, journalled])


def make(begin: Begin, output: Path, overwrite: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
    """A whole run, during which something happens."""
    with begin(output, overwrite) as place:
        checkpoint(getattr(place, "checkpoint", place))
        meanwhile()


def everything(folder: Path) -> dict[str, str]:
    """Every file and link below a folder, and every directory that is empty."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
        elif not any(path.iterdir()):
            found[name] = "empty"
    return found


THEIRS: dict[str, Callable[[Path], object]] = {
    "a directory with a file": lambda path: (path.mkdir(), (path / "thesis.tex").write_text("seven years")),
    "an empty directory": lambda path: path.mkdir(),
    "a file": lambda path: path.write_text("seven years"),
    "a link to a directory": lambda path: path.symlink_to(path.parent / "elsewhere"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a checkpoint": checkpoint,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with something in it that no run has to do with."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a file").write_text("theirs")
    return tmp_path


@both
@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
@pytest.mark.parametrize("kernel", [True, False], ids=["renameat2", "without"])
def test_what_appears_during_a_run_stays_and_the_checkpoint_gets_another_name(
    begin: Begin, theirs: Callable[[Path], object], kernel: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(rename, "_libc_renameat2", lambda: None)
    output = folder / "out"
    theirs(output)
    before = everything(folder)
    output.rename(folder / "kept")
    with pytest.raises(OutputError, match=rf"left alone; the finished checkpoint is in {output}\.1\."):
        make(begin, output, meanwhile=lambda: (folder / "kept").rename(output))
    made = {"out.1/weights": "new", f"out.1/{MANIFEST_NAME}": '{"files": {"weights": ""}}'}
    assert everything(folder) == before | made


@both
@pytest.mark.parametrize("theirs", ["a directory with a file", "a file", "a link to a directory"])
def test_to_overwrite_means_what_goldstick_wrote_also_at_the_end_of_the_run(
    begin: Begin, theirs: str, folder: Path
) -> None:
    output = checkpoint(folder / "out", "former")

    def replace() -> None:
        output.rename(folder / "moved")
        THEIRS[theirs](output)

    with pytest.raises(OutputError, match=r"the finished checkpoint is in .*out\.1"):
        make(begin, output, overwrite=True, meanwhile=replace)
    assert (folder / "out.1" / "weights").read_text() == "new"
    assert (folder / "moved" / "weights").read_text() == "former"
    left = {name: text for name, text in everything(folder).items() if name.partition("/")[0] == "out"}
    assert left and all("goldstick" not in text for text in left.values())


@both
def test_two_runs_at_once_do_not_share_an_output(begin: Begin, tmp_path: Path) -> None:
    def second() -> None:
        with pytest.raises(OutputError, match="Another run is writing"):
            make(begin, tmp_path / "out", overwrite=True)

    make(begin, tmp_path / "out", meanwhile=second)
    assert (tmp_path / "out" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


NAMES = [
    ".out.partial-20240102", ".out.old-20240101", ".out.old-99999999999999999999", ".out.old-²", ".out.work-1",
    ".out.12.tmp", ".goldstick.12.tmp",
]  # fmt: skip


@both
def test_a_name_proves_nothing(begin: Begin, folder: Path) -> None:
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "thesis.tex").write_text("seven years")
    before = everything(folder)
    make(begin, folder / "out")
    found = everything(folder)
    assert {name: text for name, text in found.items() if not name.startswith("out/")} == before


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: (path.mkdir(), (path / "run.json").write_text("{}")),
    "a directory with a lock": lambda path: (path.mkdir(), (path / "goldstick.lock").write_text("mine")),
    "a directory with an empty lock": lambda path: (
        path.mkdir(), (path / "goldstick.lock").write_text(""), (path / "thesis.tex").write_text("seven years"),
    ),
    "a directory whose lock is a link": lambda path: (path.mkdir(), (path / "goldstick.lock").symlink_to("../theirs")),
    "a file": lambda path: path.write_text("seven years"),
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}  # fmt: skip


@both
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_a_working_directory_without_the_marker_is_refused_by_name(
    begin: Begin, foreign: Callable[[Path], object], overwrite: bool, folder: Path
) -> None:
    (folder / "theirs").write_text("theirs")
    foreign(folder / ".out.work")
    before = everything(folder)
    with pytest.raises(OutputError, match=r"\.out\.work lies where goldstick would work, and it did not make that"):
        make(begin, folder / "out", overwrite=overwrite)
    assert everything(folder) == before


@both
def test_an_empty_working_directory_is_taken(begin: Begin, tmp_path: Path) -> None:
    """A run killed right after it had made it leaves that."""
    (tmp_path / ".out.work").mkdir()
    make(begin, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_is_held_by_one_run_and_what_a_directory_of_its_name_has_begun_stays(tmp_path: Path) -> None:
    file = tmp_path / "out"
    refused = pytest.raises(OutputError, match=r"Another run is writing .*/out at this moment")
    with held_file(file), refused, held_file(file):
        pass
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ValueError), journalled(file, False) as work:
        work.commit({"blocks_done": 1})
        raise ValueError
    before = everything(tmp_path)
    with held_file(file):
        pass
    assert everything(tmp_path) == before


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    checkpoint(tmp_path / "pipe")
    (tmp_path / "pipe" / MANIFEST_NAME).unlink()
    os.mkfifo(tmp_path / "pipe" / MANIFEST_NAME)
    with pytest.raises(OutputError, match="so goldstick did not write it"):
        check_output(tmp_path / "pipe", overwrite=True)


KILLED = """
import os, signal, sys
from pathlib import Path
from goldstick.checkpoint.staging import staged
with staged(Path(sys.argv[1]), overwrite=True) as place:
    (place / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    output = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(output)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / ".out.work" / "checkpoint" / "half").exists()
    make(in_one_go, output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (output / "half").exists()


@pytest.mark.parametrize(("boot", "host"), [("another", "another"), ("this", "another"), ("another", "this")])
def test_what_a_run_on_another_machine_left_is_taken_over_only_where_that_is_asked_for(
    boot: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of one machine have other names and the same kernel; a machine that was started anew the reverse."""
    left = working_directory._this_process()
    left |= {"boot": "0"} if boot == "another" else {}
    left |= {"host": "far"} if host == "another" else {}
    with monkeypatch.context() as patch:
        patch.setattr(working_directory, "_this_process", lambda: left)
        with pytest.raises(KeyboardInterrupt), staged(tmp_path / "out", False):
            monkeypatch.setattr("goldstick.checkpoint.staging.remove", lambda _: None)  # as if it were killed
            raise KeyboardInterrupt
    monkeypatch.undo()
    if (boot, host) == ("another", "another"):
        with pytest.raises(OutputError, match=r"A run on far left .*--overwrite; else choose another -o"):
            make(in_one_go, tmp_path / "out")
        make(in_one_go, tmp_path / "out", overwrite=True)
    else:
        make(in_one_go, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_unfinished_run_is_thrown_away_by_no_other_kind_of_run(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), journalled(output, False) as place:
        place.commit({"blocks_done": 3})
        raise ZeroDivisionError
    with pytest.raises(OutputError, match=r"unfinished run .*--resume .* or --overwrite"):
        make(in_one_go, output)
    assert WorkDirectory(tmp_path / ".out.work").journal() == {"blocks_done": 3}
    make(in_one_go, output, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("foreign", ["thesis.tex", "photos/1.jpg", ".git/config"])
def test_foreign_files_in_an_output_keep_it_from_being_overwritten(foreign: str, tmp_path: Path) -> None:
    output = checkpoint(tmp_path / "out")
    (output / foreign).parent.mkdir(exist_ok=True)
    (output / foreign).write_text("theirs")
    with pytest.raises(OutputError, match=rf"holds what goldstick did not write there: {foreign.partition('/')[0]}"):
        check_output(output, overwrite=True)


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": 3}', '{"files": null}', "\ud800"])
def test_a_manifest_that_cannot_be_read_gives_no_leave_to_overwrite(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST_NAME).write_text(manifest, errors="surrogatepass")
    with pytest.raises(OutputError, match="did not write it"):
        check_output(tmp_path / "out", overwrite=True)


def test_an_output_is_not_what_a_run_reads_nor_holds_it_nor_lies_in_it(tmp_path: Path) -> None:
    source, data = checkpoint(tmp_path / "model"), tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to("model")
    inputs = {"source": source, "data": data / "text.txt"}
    (data / "text.txt").write_text("text")
    for output in ("model", "data/../model", "link/../model", ".", "data", "data/text.txt", "model/inside"):
        with pytest.raises(OutputError, match="Choose an"):
            refuse_overlap(tmp_path / output, inputs)
    with pytest.raises(OutputError, match="is or holds the source"):
        refuse_overlap(source, {"source": tmp_path / "link"})
    for output in ("out", "data/out", "model-w4"):
        refuse_overlap(tmp_path / output, {**inputs, "data directory": tmp_path, "calibration data": Path("wikitext2")})


def test_an_output_may_be_given_by_any_name_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "out", "former")
    monkeypatch.chdir(tmp_path / "out")
    make(in_one_go, Path(), overwrite=True)
    assert (tmp_path / "out" / "weights").read_text() == "new"
    make(in_one_go, tmp_path / "out" / "sub" / "..", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_goes_wrong_after_the_output_is_in_place_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("goldstick.checkpoint.staging.remove", refuse)
    make(in_one_go, tmp_path / "out")
    monkeypatch.undo()
    assert (tmp_path / "out" / "weights").read_text() == "new"
    make(in_one_go, tmp_path / "out", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_finished_checkpoint_that_cannot_be_put_in_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("goldstick.checkpoint.staging.rename_noreplace", refuse)
    with pytest.raises(OutputError, match=r"Permission denied.*The finished checkpoint is in .*\.out\.work/checkpoint"):
        make(in_one_go, tmp_path / "out")
    assert (tmp_path / ".out.work" / "checkpoint" / "weights").read_text() == "new"


def test_an_interrupt_at_the_very_end_says_that_the_output_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.checkpoint.staging.sync_directory", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job starts without
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            make(in_one_go, tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.__notes__ == [f"{tmp_path / 'out'} is finished and in its place."]
    assert (tmp_path / "out" / "weights").read_text() == "new"


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="has no locks"):
        make(in_one_go, tmp_path / "out")
