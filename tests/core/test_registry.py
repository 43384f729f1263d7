"""Registries: goldstick's own first, other packages' by entry points, and whose fault it is where one is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from goldstick.core.registry import Registry
from goldstick.errors import UsageError
from tests.support.foreign_package import install

THING = "class Thing:\n    def __init__(self, name):\n        self.name = name\none, two = Thing('one'), Thing('two')\n"


def registry(own: dict[str, object | str] | None = None) -> Registry[object]:
    return Registry(
        "test.things", "a thing", lambda found: not isinstance(found, type), own or {"path": "pathlib:Path"}
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_own_things_come_first_and_are_imported_when_they_are_asked_for() -> None:
    found = registry({"path": "pathlib:Path", "seven": 7, "broken": "no_such_module:x"})
    assert list(found) == ["path", "seven", "broken"] == list(found.own_names)
    assert found["path"] is Path and found["seven"] == 7 and len(found) == 3
    assert "other" not in found
    with pytest.raises(KeyError):
        found["other"]


def test_an_installed_package_adds_to_them(installed: Path) -> None:
    install(installed, "strange", {"strange_things": THING}, "[test.things]\none = strange_things:one\n")
    found = registry()
    assert list(found) == ["path", "one"] and found.own_names == ("path",)
    assert getattr(found["one"], "name", None) == "one"


def test_the_package_of_a_broken_entry_is_named_and_the_others_work(installed: Path) -> None:
    install(
        installed, "strange", {"strange_broken": "import no_such_module_at_all"},
        "[test.things]\nbroken = strange_broken:thing\nlost = pathlib:NoSuchThing\n"
        "kind = pathlib:Path\nelse = strange_things:one\n",
    )  # fmt: skip
    install(installed / "more", "more", {}, "")
    (installed / "strange_things.py").write_text(THING)
    found = registry()
    assert found["path"] is Path
    for name, reason in (
        ("broken", "strange_broken:thing, which cannot be imported: ModuleNotFoundError: No module named"),
        ("lost", "cannot be imported: AttributeError"),
        ("kind", "which is not a thing whose 'name' is 'kind'"),
        ("else", "which is not a thing whose 'name' is 'else'"),
    ):
        with pytest.raises(UsageError, match=rf"The package strange registers '{name}' in test\.things as .*{reason}"):
            found[name]


def test_a_name_of_goldsticks_own_is_refused_and_so_is_one_of_two_packages(installed: Path) -> None:
    install(installed, "strange", {"strange_things": THING}, "[test.things]\none = strange_things:one\n")
    with pytest.raises(UsageError, match=r"package strange registers 'one' in test\.things, and goldstick itself does"):
        list(registry({"one": 1}))
    assert registry({"one": 1})["one"] == 1
    install(installed / "2", "other", {}, "[test.things]\none = strange_things:one\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed / "2"))
        with pytest.raises(
            UsageError, match=r"The package (strange|other) registers 'one' .* The package (strange|other)"
        ):
            list(registry())


def test_neither_help_nor_the_import_of_goldstick_looks_through_the_packages(tmp_path: Path) -> None:
    install(tmp_path, "clash", {}, "[goldstick.formats]\nawq = a:b\n[goldstick.algorithms]\nrtn = a:b\n")
    for statement in ("import goldstick.cli", "-m goldstick --help", "-m goldstick quantize --help"):
        words = statement.split() if statement.startswith("-") else ["-c", statement]
        ended = subprocess.run(
            [sys.executable, *words], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
    ended = subprocess.run(
        [sys.executable, "-m", "goldstick", "export", "x", "-o", "y", "--format", "awq"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode != 0 and "The package clash registers 'awq' in goldstick.formats" in ended.stderr


def test_an_evaluation_task_of_another_package_is_found(tmp_path: Path) -> None:
    source = (
        "class Mine:\n    name, protocol, models = 'mine', 'mine@1', ()\n    def load(self, _):\n        return []\n"
        "    def run(self, *_):\n        return 0\nmine = Mine()\n"
    )
    install(tmp_path, "tasks", {"my_tasks": source}, "[goldstick.tasks]\nmine = my_tasks:mine\n")
    script = "from goldstick.evaluation.evaluate import find_tasks\nprint(find_tasks(['mine', 'boolq'])['mine'].run())"
    ended = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("0\n", 0), ended.stderr
