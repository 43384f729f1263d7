"""A file is there whole or not at all, and takes nobody's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldstick.core.whole_file import whole_file


def write(path: Path, content: bytes, *, replace: bool) -> None:
    with whole_file(path, replace=replace) as file:
        file.write(content)


def test_nothing_has_the_name_until_the_file_is_whole(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a", replace=False) as file:
        file.write(b"half")
        file.flush()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"half"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"former")
    with pytest.raises(error), whole_file(tmp_path / "a", replace=True) as file:
        file.write(b"new")
        raise error
    assert (tmp_path / "a").read_bytes() == b"former"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_that_came_meanwhile_is_replaced_only_where_that_was_asked_for(tmp_path: Path) -> None:
    for replace in (False, True):
        try:
            with whole_file(tmp_path / "a", replace=replace) as file:
                file.write(b"new")
                (tmp_path / "a").write_bytes(b"theirs")
        except FileExistsError:
            assert not replace
            assert (tmp_path / "a").read_bytes() == b"theirs"
        else:
            assert replace
            assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_its_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write(tmp_path / "a", b"", replace=False)
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    write(tmp_path / ("ä" * 127), b"x", replace=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"x"]
