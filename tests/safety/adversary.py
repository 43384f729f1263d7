"""Somebody else who works in the same tree, and a machine that fails: at one step of a command, in its own process."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.safety.ledger import contents_at

#: What Python tells of before it is done. Each within the tree is a step.
STEPS = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.scandir",
    "os.truncate",
    "shutil.rmtree",
}

#: Names that are tempting: goldstick's own, and those of outputs.
NAMES = [
    "a", "b", "a.1", "a.2", "b.1", "a-gptq", "page.html", "found.json", "report", ".a.work", ".b.work", ".a-gptq.work",
    ".a.partial-20240102", ".a.old-20240101", ".b.old-²", ".page.html.1.tmp", ".goldstick.1.tmp", "cache", "text",
]  # fmt: skip

#: What commands need to get anywhere.
KEPT = {"S", "elsewhere"}


class Adversary:
    """Acts once in a command's life.

    Args:
        root: The tree.
        log: Where it writes down what it did to the tree, one JSON line each.
        seed: Decides what it does.
        step: At which step; never where ``None``.
    """

    def __init__(self, root: Path, log: Path, seed: int, step: int | None) -> None:
        self._root, self._log, self._random = root, log, random.Random(seed)
        self._prefix = str(root)
        self._at = step
        self.steps = 0
        self._acting = False

    def watch(self) -> None:
        """Count the steps of this process from now on."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._acting or event not in STEPS or not arguments or not self._within(event, arguments):
            return
        self.steps += 1
        if self.steps == self._at:
            self._acting = True
            try:
                self.act(of_process=True, writing=event != "open" or arguments[1] not in ("r", "rb", None))
            finally:
                self._acting = False

    def _within(self, event: str, arguments: tuple[Any, ...]) -> bool:
        path = arguments[0]
        if event == "os.remove" and len(arguments) > 1 and arguments[1] not in (-1, None):
            return True
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self._prefix)

    def act(self, *, of_process: bool, writing: bool = False) -> None:
        """Do one thing; signals and failures only where it is in a command's process."""
        deeds: list[Callable[[], None]] = [self._put, self._put, self._put, self._drop, self._move, self._vanish]
        if of_process:
            deeds += [self._kill, self._kill, self._kill, self._signal, self._signal]
            deeds += [self._fail, self._fail] if writing else []
        self._random.choice(deeds)()

    def _tell(self, *what: str | dict[str, str]) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def _put(self) -> None:
        name = self._random.choice(NAMES)
        path = self._root / name
        if os.path.lexists(path):
            return
        kind = self._random.choice(["file", "directory", "empty", "link", "dangling", "lock"])
        if kind == "file":
            path.write_text(f"their file {self._random.random()}")
        elif kind == "link":
            path.symlink_to(self._random.choice(["elsewhere", "S", "a"]))
        elif kind == "dangling":
            path.symlink_to("nowhere")
        else:
            path.mkdir()
            if kind != "empty":
                (path / "thesis.tex").write_text(f"seven years {self._random.random()}")
            if kind == "lock":
                (path / "run.json").write_text("{}")
                (path / "goldstick.lock").write_text("")
        self._tell("put", contents_at(self._root, name))

    def _drop(self) -> None:
        folders = [path for path in self._root.iterdir() if self._is_users(path) and path.is_dir()]
        folder = self._random.choice([path for path in folders if not path.is_symlink()])
        name = f"{folder.name}/notes-{self._random.randrange(10**6)}.txt"
        (self._root / name).write_text("their notes")
        self._tell("put", contents_at(self._root, name))

    def _move(self) -> None:
        names = self._movable()
        target = self._random.choice([*NAMES, "moved"])
        if names and not os.path.lexists(self._root / target):
            source = self._random.choice(names)
            os.rename(self._root / source, self._root / target)
            self._tell("move", source, target)

    def _vanish(self) -> None:
        """Its owner removes something."""
        names = self._movable()
        if names:
            name = self._random.choice(names)
            path = self._root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            self._tell("vanish", name)

    def _movable(self) -> list[str]:
        return [path.name for path in self._root.iterdir() if self._is_users(path) and path.name not in KEPT]

    def _is_users(self, path: Path) -> bool:
        """Whether a user may take this for something to work with; not what a run works in."""
        return not (path.name.endswith((".work", ".tmp")) and (path.is_file() or (path / "goldstick.lock").exists()))

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _signal(self) -> None:
        for _ in range(self._random.choice([1, 1, 2])):
            os.kill(os.getpid(), self._random.choice([signal.SIGINT, signal.SIGTERM]))

    def _fail(self) -> None:
        number = self._random.choice([errno.ENOSPC, errno.EIO, errno.EACCES])
        raise OSError(number, os.strerror(number))
