"""A rename takes no name that is taken, with the kernel's help and without."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from goldstick.core import rename
from goldstick.core.rename import rename_noreplace


@pytest.fixture(params=["renameat2", "without"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the kernel have ``renameat2``, or be one that has not."""
    if request.param == "without":
        monkeypatch.setattr(rename, "_libc_renameat2", lambda: None)
    return str(request.param)


def put(path: Path, kind: str) -> Path:
    """Something of a kind at a path."""
    if kind == "file":
        path.write_text(f"a file at {path.name}")
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
        if kind == "directory":
            (path / "inside").write_text(f"inside {path.name}")
    return path


def kind_of(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    return path.read_text() if path.is_file() else sorted(entry.read_text() for entry in path.iterdir())


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_free_name_is_taken(kind: str, tmp_path: Path) -> None:
    source = put(tmp_path / "a", kind)
    before = kind_of(source)
    rename_noreplace(source, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert kind_of(tmp_path / "b") == before


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("there", ["file", "directory", "empty directory", "dangling link"])
def test_a_name_that_is_taken_stays_what_it_is(kind: str, there: str, tmp_path: Path) -> None:
    source, target = put(tmp_path / "a", kind), put(tmp_path / "b", there)
    before = kind_of(source), kind_of(target)
    with pytest.raises(FileExistsError):
        rename_noreplace(source, target)
    assert (kind_of(source), kind_of(target)) == before


def test_what_is_put_into_the_directory_that_takes_the_name_stays(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the kernel's help the name is taken first, and somebody may be quick."""
    if kernel == "renameat2":
        pytest.skip("the kernel does both in one step")
    make = Path.mkdir

    def make_and_put(self: Path) -> None:
        make(self)
        (self / "theirs").write_text("quick")

    source = put(tmp_path / "a", "directory")
    monkeypatch.setattr(Path, "mkdir", make_and_put)
    with pytest.raises(FileExistsError):
        rename_noreplace(source, tmp_path / "b")
    assert (tmp_path / "b" / "theirs").read_text() == "quick"
    assert kind_of(source) == ["inside a"]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_rename_that_fails_otherwise_leaves_no_name_behind(kind: str, tmp_path: Path) -> None:
    source = put(tmp_path / "a", kind)
    with pytest.raises(OSError) as caught:
        rename_noreplace(source, tmp_path / "nowhere" / "b")
    assert caught.value.errno == errno.ENOENT
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
