"""The import directions of docs/architecture.md and the shape of files, read from the syntax trees."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

ROOT = Path(__file__).resolve().parent.parent

PACKAGE = ROOT / "goldstick"

BELOW = (
    "core structure kernels nn surgery algorithms training evaluation report calibration formats recipes checkpoint hf"
)
"""The rooms that jobs are made of."""

ALLOWED: dict[str, str] = {
    "errors": "",
    "core": "",
    "structure": "core",
    "kernels": "core",
    "nn": "core kernels",
    "surgery": "core structure nn",
    "algorithms": "core structure",
    "training": "core structure",
    "evaluation": "core",
    "report": "core evaluation",
    "calibration": "core structure surgery algorithms.base evaluation",
    "formats": "core",
    "registration": "formats",
    "recipes": "core structure surgery algorithms training evaluation calibration formats",
    "checkpoint": "core report formats",
    "hf": "core structure nn surgery formats checkpoint",
    "jobs/load": BELOW,
    "jobs/plan": f"{BELOW} jobs/load",
    "jobs/proof": f"{BELOW} jobs/load jobs/plan",
    "jobs/save": f"{BELOW} jobs/load jobs/plan jobs/proof",
    "jobs/inspect": f"{BELOW} jobs/save",
    "jobs/quantize": f"{BELOW} jobs/load jobs/plan jobs/proof jobs/save jobs/inspect",
    "jobs/importance": f"{BELOW} jobs/load jobs/plan jobs/quantize",
    "jobs/export": f"{BELOW} jobs/load jobs/plan jobs/proof jobs/save jobs/inspect jobs/quantize",
    "jobs/verify": f"{BELOW} jobs/proof jobs/inspect",
    "jobs/optimize": f"{BELOW} jobs/proof",
    "jobs/bench": f"{BELOW} jobs/load jobs/optimize",
    "jobs/evaluate": f"{BELOW} jobs/load jobs/optimize jobs/bench",
    "jobs/compare": f"{BELOW} jobs/load",
    "jobs/sensitivity": f"{BELOW} jobs/load",
    "jobs/doctor": f"{BELOW} jobs/plan jobs/save jobs/evaluate",
    "jobs/search": f"{BELOW} jobs/load jobs/plan jobs/save jobs/sensitivity jobs/doctor",
    "jobs/serve": f"{BELOW} jobs/load jobs/optimize",
    "planning": f"{BELOW} jobs",
    "api": f"{BELOW} jobs planning",
    "cli": f"{BELOW} jobs planning api",
    "__init__": "registration core structure algorithms recipes planning api",
    "__main__": "cli",
    "jobs": "",
}
"""What each room may import besides itself and ``errors``: rooms in lines above its own, so that no circle can be."""

ONLY_TORCH_AND_THE_STANDARD_LIBRARY = {"errors", "core"}

MOST_FILES_IMPORTING = {"transformers": 8, "datasets": 3}

#: Names of architectures that the code has another use for.
WORDS_THAT_ARE_FAMILIES_TOO = {"clip"}

TRITON_KERNELS = PACKAGE / "kernels" / "triton"

FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def found(rule: Callable[[Path], Any]) -> dict[str, Any]:
    """What a rule finds wrong, by file."""
    return {str(path.relative_to(ROOT)): wrong for path in FILES if (wrong := rule(path))}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def part_of(path: Path) -> str:
    """The room of a file: what lies right under goldstick, and under jobs one folder more."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(parts[:2]) if parts[0] == "jobs" and len(parts) > 2 else parts[0]


def imported_modules(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, absolute; ``from a import b`` gives both a and a.b."""
    package = ["goldstick", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module != "goldstick":
                yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(path: Path) -> set[str]:
    """The rooms of goldstick that a file imports, and algorithms.base where it is that alone."""
    parts = set()
    for module in imported_modules(path):
        names = module.split(".")
        if names[0] != "goldstick" or len(names) == 1:
            continue
        if not any((PACKAGE / names[1]).with_suffix(suffix).exists() for suffix in ("", ".py")):
            continue  # a name that goldstick/__init__.py defines
        if names[1] == "jobs" and len(names) > 2:
            parts.add("/".join(names[1:3]))
            continue
        base = len(names) > 2 and names[1] == "algorithms" and names[2] in ("base", "block_reconstruction", "validate")
        parts.add("algorithms.base" if base else names[1])
    return parts


def third_party(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported_modules(path)} - {"goldstick"}


def allowed_in(path: Path) -> set[str]:
    """The rooms that a file may import, its own among them."""
    room = part_of(path)
    assert room in ALLOWED, f"{path.relative_to(PACKAGE)}: a new room of goldstick needs a line in ALLOWED"
    allowed = {room, "errors", *ALLOWED[room].split()}
    if "algorithms" in allowed:
        allowed.add("algorithms.base")
    if "jobs" in allowed:
        allowed |= {one for one in ALLOWED if one.startswith("jobs/")}
    return allowed


def test_imports_follow_the_directions() -> None:
    assert found(lambda path: imported_parts(path) - allowed_in(path)) == {}


def test_the_bottom_knows_torch_and_the_standard_library_only() -> None:
    own = {"torch", *sys.stdlib_module_names}
    bottom = ONLY_TORCH_AND_THE_STANDARD_LIBRARY
    assert found(lambda path: third_party(path) - own if part_of(path) in bottom else None) == {}


def test_a_package_front_imports_no_part_through_its_own_front() -> None:
    """``from goldstick import x`` inside the package would import everything for one name."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "goldstick" and node.level == 0:
                loose = [
                    alias.name
                    for alias in node.names
                    if not (PACKAGE / alias.name).is_dir() and not (PACKAGE / f"{alias.name}.py").exists()
                ]
                top = path in (PACKAGE / "cli.py", PACKAGE / "__main__.py") or part_of(path) in ("cli", "api")
                assert top or not set(loose) - {"__version__"}, f"{path.relative_to(ROOT)} imports {loose}"


@pytest.mark.parametrize(("library", "most"), MOST_FILES_IMPORTING.items())
def test_heavy_libraries_are_imported_in_few_files(library: str, most: int) -> None:
    importers = [str(path.relative_to(ROOT)) for path in FILES if library in third_party(path)]
    assert len(importers) <= most, f"{library} is imported by {importers}; {most} at most"


def test_triton_is_imported_where_its_kernels_are_and_not_by_their_front() -> None:
    importers = [path for path in FILES if "triton" in third_party(path)]
    assert importers
    assert {path.parent for path in importers} == {TRITON_KERNELS}
    assert "__init__.py" not in {path.name for path in importers}, (
        "goldstick works without Triton, which is imported when a layer asks for it"
    )


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    """Modules are named after their ideas."""
    assert {path.stem for path in FILES} & {"utils", "util", "helpers", "helper", "common", "misc"} == set()


def test_no_file_is_longer_than_300_lines() -> None:
    """One that is longer holds more than one idea."""
    assert found(lambda path: lines if (lines := path.read_text().count("\n")) > 300 else None) == {}


def test_everything_public_has_a_docstring() -> None:
    def bare(path: Path) -> list[str]:
        tree = tree_of(path)
        front = [path.stem] if path.stat().st_size and ast.get_docstring(tree) is None else []
        return [*front, *undocumented(tree)]

    assert found(bare) == {}


def undocumented(scope: ast.Module | ast.ClassDef, prefix: str = "") -> list[str]:
    """Public functions, classes and methods without a docstring; overloads and property setters need none."""
    bare = []
    for node in scope.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        exempt = decorators & {"overload", "override", "typing.overload", f"{node.name}.setter"}
        if ast.get_docstring(node) is None and not exempt:
            bare.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            bare += undocumented(node, f"{prefix}{node.name}.")
    return bare


def test_the_rules_catch_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "goldstick"
    for room in ("kernels", "nn", "jobs/save", "jobs/plan"):
        (package / room).mkdir(parents=True)
    (package / "api.py").touch()
    file = package / "kernels" / "x.py"
    file.write_text("from ..nn import linear\nimport goldstick.nn.conv\ndef f():\n    from goldstick import api\n")
    planning = package / "jobs" / "plan" / "y.py"
    planning.write_text("from goldstick.jobs.save import pieces\n")
    monkeypatch.setitem(globals(), "PACKAGE", package)
    assert imported_parts(file) - allowed_in(file) == {"nn", "api"}
    assert imported_parts(planning) - allowed_in(planning) == {"jobs/save"}
    assert undocumented(ast.parse(file.read_text())) == ["f"]


def test_no_model_family_is_named_outside_gguf() -> None:
    """No constant is the name of an architecture of transformers, but in the files of GGUF, which names them."""
    families = {name.lower() for name in CONFIG_MAPPING_NAMES} - WORDS_THAT_ARE_FAMILIES_TOO
    named = {
        str(path.relative_to(PACKAGE)): node.value
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() in families
    }
    assert {name: value for name, value in named.items() if "gguf" not in name} == {}


def test_no_room_imports_one_below_it_in_the_table() -> None:
    rooms = list(ALLOWED)
    for room, allowed in ALLOWED.items():
        for one in allowed.replace("algorithms.base", "algorithms").split():
            assert one == "jobs" or rooms.index(one) < rooms.index(room), f"{room} may not import {one}: it comes later"


def test_the_documented_table_is_this_one() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `([\w/]+?)(?:/|\.py)` \|.*\| ([^|]*) \|$", text, flags=re.MULTILINE))
    expected = {}
    for room, allowed in ALLOWED.items():
        if room.startswith("__") or room == "jobs":
            continue
        words = allowed.split()
        if allowed.startswith(BELOW):
            words = ["all above jobs", *(word.removeprefix("jobs/") for word in words[len(BELOW.split()) :])]
        expected[room] = ", ".join(words) or "nothing"
    assert documented == expected


def test_tests_lie_where_what_they_test_lies() -> None:
    """A folder of tests is called what a folder of goldstick, or of the checkout, is called."""
    own = {"support", "data", "safety"}
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts and folder.parts[0] not in own:
            assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir(), f"{path.relative_to(ROOT)}: no such room"


def test_no_test_imports_another() -> None:
    """What several tests use lies in tests/support or is a fixture of a conftest."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
                last = [node.module.split(".")[-1], *(alias.name for alias in node.names)]
                assert not any(word.startswith("test_") or word == "conftest" for word in last), (
                    f"{path.relative_to(ROOT)} imports {node.module}: move what both use to tests/support"
                )
