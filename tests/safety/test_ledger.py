"""The ledger sees every loss that it is there to see."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.safety.ledger import Ledger, contents_at


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Of a tree with a letter, an empty directory of a working directory's name, and one that holds something."""
    found = Ledger(root=tmp_path)
    for name in ("elsewhere", ".a.work", ".b.work"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "letter.txt").write_text("theirs")
    (tmp_path / ".b.work" / "thesis.tex").write_text("seven years")
    (tmp_path / "page.html").write_text("their page")
    for name in ("elsewhere", ".a.work", ".b.work", "page.html"):
        found.put(contents_at(tmp_path, name))
    return found


def test_nothing_is_lost_where_nothing_was_done(ledger: Ledger) -> None:
    assert ledger.lost(set()) == ledger.learn(set()) == []


@pytest.mark.parametrize("name", ["elsewhere/letter.txt", ".b.work/thesis.tex", "page.html"])
def test_a_file_that_is_removed_or_changed_is_lost(ledger: Ledger, name: str) -> None:
    (ledger.root / name).write_text("something else")
    assert ledger.lost(set()) == [name]
    (ledger.root / name).unlink()
    assert ledger.lost(set()) == [name]


def test_directories_are_lost_but_for_an_empty_one_that_a_run_takes(ledger: Ledger) -> None:
    shutil.rmtree(ledger.root / ".a.work")
    assert ledger.lost(set()) == []
    shutil.rmtree(ledger.root / "elsewhere")
    assert ledger.lost({"elsewhere"}) == ["elsewhere", "elsewhere/letter.txt"]


def test_a_file_that_was_overwritten_as_told_is_goldsticks_from_then_on(ledger: Ledger) -> None:
    (ledger.root / "page.html").write_text("goldstick's page")
    assert ledger.lost({"page.html"}) == []
    ledger.hand_over({"page.html"})
    assert ledger.learn({"page.html"}) == ledger.lost(set()) == []
    (ledger.root / "page.html").unlink()
    assert ledger.lost(set()) == ["page.html"]


def test_what_is_neither_whole_nor_a_working_directory_is_left(ledger: Ledger) -> None:
    (ledger.root / "a").mkdir()
    (ledger.root / "a" / "model.safetensors").write_text("half")
    (ledger.root / ".page.html.1.tmp").write_text("of a run that was killed")
    assert ledger.learn({"a"}) == ["a"]
