"""A fresh process has the goldstick of its parent, imports nothing from the current directory, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: Removes what an installation for development puts before every search, so that the tree below is found.
AS_IF_INSTALLED = (
    "import sys; sys.meta_path[:] = [it for it in sys.meta_path if it.__class__.__module__[:9] != '_editable']"
)

#: Run by the fresh process.
WORK = """
import os, sys, time
def prepare():
    print(os.getpid(), file=open("prepared", "w"), flush=True)
def main():
    word = sys.argv[1]
    if word == "fail":
        print("said last", file=sys.stderr)
        return 1
    if word == "die":
        os.kill(os.getpid(), 9)
    if word == "path":
        libraries = os.environ["LD_LIBRARY_PATH"].split(":")
        raise RuntimeError(repr([part for part in sys.path + libraries if part in ("", os.getcwd())]))
    if word == "wait":
        from goldstick.core.fresh_process import end_with_the_parent
        end_with_the_parent()
        print(os.getpid(), file=open("started", "w"), flush=True)
        time.sleep(100)
"""


class Tree:
    """A package ``goldstick`` of the files at hand alone, and a folder to start in."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.here.mkdir()
        core = folder / "tree" / "goldstick" / "core"
        core.mkdir(parents=True)
        own = Path(__file__).parents[2] / "goldstick" / "core"
        for name in ("fresh_start.py", "fresh_process.py"):
            (core / name).write_text((own / name).read_text())
        for package in (core, core.parent):
            (package / "__init__.py").touch()
        (core / "work.py").write_text(WORK)
        (folder / "settings").mkdir()
        (folder / "settings" / "sitecustomize.py").write_text(AS_IF_INSTALLED)
        self.script = f"import sys; sys.path.insert(0, {str(folder / 'tree')!r})\n"
        self.script += "from goldstick.core.fresh_process import run_module, start_ahead\n"
        self.script += "if sys.argv[1] == 'ahead': start_ahead('goldstick.core.work')\n"
        self.script += "print(run_module('goldstick.core.work', *sys.argv[2:]) if sys.argv[2:] else '')"
        self.environment = os.environ | {"PYTHONPATH": f":{folder / 'settings'}", "LD_LIBRARY_PATH": ":/lib"}

    def start(self, *words: str, when: str = "now") -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-c", self.script, when, *words]
        return subprocess.Popen(command, cwd=self.here, env=self.environment, stdout=subprocess.PIPE, text=True)

    def says(self, *words: str, when: str = "now") -> str:
        said, _ = self.start(*words, when=when).communicate(timeout=60)
        return said.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_it_runs_the_goldstick_that_its_parent_imported_and_says_how_it_ended(tree: Tree) -> None:
    assert tree.says("work") == "None"
    assert tree.says("fail") == "said last"
    assert tree.says("die") == "it was ended by SIGKILL: the memory may not have sufficed."


def test_the_current_directory_is_no_place_to_import_from(tree: Tree) -> None:
    assert tree.says("path") == "RuntimeError: []"


@pytest.mark.parametrize(("word", "said"), [("work", "None"), ("fail", "said last")])
def test_one_that_was_started_ahead_is_prepared_and_told_later_what_to_do(tree: Tree, word: str, said: str) -> None:
    assert tree.says(word) == said
    assert not (tree.here / "prepared").exists()
    assert tree.says(word, when="ahead") == said
    assert (tree.here / "prepared").exists()


def test_one_that_was_started_ahead_in_vain_ends_with_its_parent(tree: Tree) -> None:
    assert tree.says(when="ahead") == ""
    prepared = tree.here / "prepared"  # it may not have come so far
    assert not prepared.exists() or _when(lambda: "gone" if _ended(int(prepared.read_text())) else "") == "gone"


def test_it_ends_when_its_parent_is_killed(tree: Tree) -> None:
    parent = tree.start("wait")
    started = tree.here / "started"
    child = int(_when(lambda: started.read_text().strip() if started.exists() else ""))
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=60)
    assert _when(lambda: "gone" if _ended(child) else "") == "gone"


def _ended(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # nobody may reap it here
    except FileNotFoundError:
        return True


def _when(look: Callable[[], str]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to pass")
