"""What lies in a scratch tree, whose it is, and what must still be there after a command."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

MANIFEST, LOCK = "goldstick.json", "goldstick.lock"
REPORT = {"report.json", "report.html"}


def content_of(path: Path) -> str:
    """What tells a file, a link or a directory from another."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if path.is_dir():
        return "directory"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def everything(root: Path) -> dict[str, str]:
    """Every file, link and directory below ``root``; links are not followed."""
    found = {}
    for folder, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = content_of(path)
    return found


def contents_at(root: Path, name: str) -> dict[str, str]:
    """What lies at a name below ``root``, with all that is in it."""
    path = root / name
    inner = everything(path) if path.is_dir() and not path.is_symlink() else {}
    return {name: content_of(path)} | {f"{name}/{place}": content for place, content in inner.items()}


@dataclass(kw_only=True)
class Ledger:
    """Whose the things in a tree are.

    Attributes:
        root: The tree.
        theirs: What users put there: path → content. None of it may be lost.
        outputs: What goldstick finished: directory → path in it → content. Only what is overwritten may be lost.
        files: Single files that goldstick finished, and which may be lost only where they are overwritten.
        unknown: What was moved while it was being written.
        pending: Outputs that a killed run had moved away to replace them.
    """

    root: Path
    theirs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)

    def put(self, contents: dict[str, str]) -> None:
        """Somebody put this there."""
        self.theirs |= contents

    def move(self, source: str, target: str) -> None:
        """Somebody moved this."""
        for owned in (self.theirs, self.files):
            for name in [name for name in owned if name == source or name.startswith(source + "/")]:
                owned[target + name.removeprefix(source)] = owned.pop(name)
        if source in self.outputs:
            self.outputs[target] = self.outputs.pop(source)
        self.unknown.discard(source)
        if not any(target in owned for owned in (self.theirs, self.files, self.outputs)):
            self.unknown.add(target)

    def vanish(self, name: str) -> None:
        """Its owner removed this."""
        for owned in (self.theirs, self.files):
            for inner in [inner for inner in owned if inner == name or inner.startswith(name + "/")]:
                del owned[inner]
        self.outputs.pop(name, None)

    def lost(self, overwritten: set[str]) -> list[str]:
        """What is not there any more, or is not what it was.

        Args:
            overwritten: Outputs that the command was told to overwrite. Of such a directory the former checkpoint must
                still be somewhere, or a whole new one be in its place.
        """
        found = everything(self.root)
        kept = {
            name: content
            for name, content in self.theirs.items()
            if (content == "directory" or name not in overwritten) and not self._is_empty_working(name)
        }
        wrong = [name for name, content in kept.items() if found.get(name) != content]
        wrong += [
            name for name, content in self.files.items() if name not in overwritten and found.get(name) != content
        ]
        for directory, files in self.outputs.items():
            replaced = directory in overwritten and self.is_whole(directory)
            moved = directory in overwritten | self.pending and self._moved_away(directory, files, found)
            if replaced or moved:
                continue
            wrong += [
                f"{directory}/{name}" for name, content in files.items() if found.get(f"{directory}/{name}") != content
            ]
        return wrong

    def hand_over(self, overwritten: set[str]) -> None:
        """Files and links of users that a command was told to overwrite, and did, are goldstick's from now on."""
        for name in overwritten & self.theirs.keys():
            there = os.path.lexists(self.root / name)
            if self.theirs[name] != "directory" and there and content_of(self.root / name) != self.theirs[name]:
                del self.theirs[name]

    def learn(self, files: set[str]) -> list[str]:
        """Take down what goldstick has made since; return what it should not have left.

        That is what is neither whole nor a working directory, nor a temporary file, which a kill may leave.

        Args:
            files: The files that commands were to write.
        """
        self.pending = {name for name in self.outputs if not self.is_whole(name)}
        self.outputs |= {name: self._files(name) for name in self.outputs if self.is_whole(name)}
        self.files = {name: content_of(self.root / name) for name in self.files if (self.root / name).is_file()}
        strange = []
        for path in self.root.iterdir():
            name = path.name
            if name in self.theirs or name in self.outputs or name in self.files or name in self.unknown | {"cache"}:
                continue
            if path.is_dir() and self.is_whole(name):
                self.outputs[name] = self._files(name)
            elif name in files and path.is_dir() and self._begins_report(path):
                self.unknown.add(name)  # of a command that was stopped before its report was whole
            elif path.is_file() and name in files | REPORT:
                self.files[name] = content_of(path)
            elif not (path.is_file() and name.endswith(".tmp")) and not self._is_working(path):
                strange.append(name)
        return strange

    def _files(self, directory: str) -> dict[str, str]:
        found = everything(self.root / directory)
        return {name: content for name, content in found.items() if f"{directory}/{name}" not in self.theirs}

    def is_whole(self, directory: str) -> bool:
        """Whether a directory holds all that its manifest names, unchanged, or a report and its page."""
        path = self.root / directory
        try:
            named = json.loads((path / MANIFEST).read_text())["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return {entry.name for entry in path.iterdir()} >= REPORT if path.is_dir() else False
        return all((path / name).is_file() and content_of(path / name) == digest for name, digest in named.items())

    def _begins_report(self, path: Path) -> bool:
        return {entry.name for entry in path.iterdir() if not entry.name.endswith(".tmp")} <= REPORT

    def _is_working(self, path: Path) -> bool:
        return path.is_dir() and path.name.endswith(".work") and (not any(path.iterdir()) or (path / LOCK).exists())

    def _is_empty_working(self, name: str) -> bool:
        """Whether it was an empty directory of a working directory's name, which a run takes and removes."""
        empty = self.theirs[name] == "directory" and not any(inner.startswith(name + "/") for inner in self.theirs)
        return empty and name.endswith(".work")

    def _moved_away(self, directory: str, files: dict[str, str], found: dict[str, str]) -> bool:
        places = [directory, f".{directory}.work/former", *(f"{directory}.{number}" for number in range(1, 9))]
        return any(all(found.get(f"{place}/{name}") == content for name, content in files.items()) for place in places)
