"""The import directions of docs/architecture.md and the shape of files, read from the syntax trees."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "goldstick"

EVERYTHING_BUT_THE_TOP = {
    "core",
    "structure",
    "algorithms",
    "calibration",
    "training",
    "surgery",
    "nn",
    "kernels",
    "formats",
    "evaluation",
    "report",
    "recipes",
    "pipeline",
}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "registration": {"formats"},
    "core": set(),
    "structure": {"core"},
    "kernels": {"core"},
    "formats": {"core"},
    "nn": {"core", "kernels"},
    "surgery": {"core", "structure", "nn"},
    "algorithms": {"core", "structure"},
    "calibration": {"core", "structure", "surgery", "algorithms.base", "evaluation"},
    "training": {"core", "structure", "surgery", "algorithms.base"},
    "evaluation": {"core"},
    "report": {"core", "evaluation"},
    "recipes": {"algorithms", "calibration", "training", "surgery", "structure", "core", "formats"},
    "pipeline": EVERYTHING_BUT_THE_TOP,
    "api": EVERYTHING_BUT_THE_TOP | {"api"},
    "cli": EVERYTHING_BUT_THE_TOP | {"api", "cli"},
}
"""What each part (a module or package right under goldstick) may import besides itself and ``errors``."""

ALLOWED_IN_FILES: dict[str, set[str]] = {
    "formats/checkpoint.py": {"core", "structure", "nn", "surgery"},
    "formats/transformers_*.py": {"core", "structure", "nn", "surgery"},
    "__init__.py": EVERYTHING_BUT_THE_TOP | {"api", "registration"},
    "__main__.py": {"cli"},
}
"""Exceptions, by file: these replace the rule of the part."""

ONLY_TORCH_AND_THE_STANDARD_LIBRARY = {"errors", "core"}

MOST_FILES_IMPORTING = {"transformers": 7, "datasets": 3}

#: Names of architectures that the code has another use for.
WORDS_THAT_ARE_FAMILIES_TOO = {"clip"}

TRITON_KERNELS = PACKAGE / "kernels" / "triton"

FILES = sorted(path for path in PACKAGE.rglob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, absolute; ``from a import b`` gives both a and a.b."""
    tree = ast.parse(path.read_text())
    package = ["goldstick", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module != "goldstick":
                yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(path: Path) -> set[str]:
    """The parts of goldstick a file imports, one level deep but for algorithms.base."""
    parts = set()
    for module in imported_modules(path):
        names = module.split(".")
        if names[0] != "goldstick" or len(names) == 1:
            continue
        if not any((PACKAGE / names[1]).with_suffix(suffix).exists() for suffix in ("", ".py")):
            continue  # a name that goldstick/__init__.py defines
        base = len(names) > 2 and names[1] == "algorithms" and names[2] in ("base", "base_finisher")
        parts.add("algorithms.base" if base else names[1])
    return parts


def third_party(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported_modules(path)} - {"goldstick"}


def allowed_in(path: Path) -> set[str]:
    relative = path.relative_to(PACKAGE)
    for pattern, parts in ALLOWED_IN_FILES.items():
        if relative.parent == Path(pattern).parent and relative.match(pattern):
            return parts
    assert part_of(path) in ALLOWED, f"{relative}: a new part of goldstick needs a line in ALLOWED"
    return ALLOWED[part_of(path)]


@every_file
def test_imports_follow_the_directions(path: Path) -> None:
    allowed = allowed_in(path) | {part_of(path), "errors"}
    if "algorithms" in allowed:
        allowed = allowed | {"algorithms.base"}
    wrong = imported_parts(path) - allowed
    assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)} (allowed: {sorted(allowed)})"


@every_file
def test_the_bottom_knows_torch_and_the_standard_library_only(path: Path) -> None:
    if part_of(path) not in ONLY_TORCH_AND_THE_STANDARD_LIBRARY:
        return
    foreign = third_party(path) - set(sys.stdlib_module_names) - {"torch"}
    assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_a_package_front_imports_no_part_through_its_own_front() -> None:
    """``from goldstick import x`` inside the package would import everything for one name."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
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


@every_file
def test_triton_is_imported_where_its_kernels_are_and_not_by_their_front(path: Path) -> None:
    if "triton" in third_party(path):
        assert path.parent == TRITON_KERNELS, f"{path.relative_to(ROOT)} imports triton"
        assert path.name != "__init__.py", "goldstick works without Triton, which is imported when a layer asks for it"


@every_file
def test_no_file_is_a_drawer_for_odds_and_ends(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}, "name a module after its idea"


@every_file
def test_no_file_is_longer_than_300_lines(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= 300, f"{path.relative_to(ROOT)} has {lines} lines: it holds more than one idea"


@every_file
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text())
    bare = [path.stem] if path.stat().st_size and ast.get_docstring(tree) is None else []
    bare += undocumented(tree)
    assert not bare, f"{path.relative_to(ROOT)}: no docstring for {', '.join(bare)}"


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
    (package / "kernels").mkdir(parents=True)
    (package / "nn").mkdir()
    (package / "api.py").touch()
    file = package / "kernels" / "x.py"
    file.write_text("from ..nn import linear\nimport goldstick.nn.conv\ndef f():\n    from goldstick import api\n")
    monkeypatch.setitem(globals(), "PACKAGE", package)
    assert imported_parts(file) == {"nn", "api"}
    assert undocumented(ast.parse(file.read_text())) == ["f"]


def test_no_model_family_is_named_outside_gguf() -> None:
    """No constant is the name of an architecture of transformers, but in the files of GGUF, which names them."""
    families = {name.lower() for name in CONFIG_MAPPING_NAMES} - WORDS_THAT_ARE_FAMILIES_TOO
    named = {
        str(path.relative_to(PACKAGE)): node.value
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() in families
    }
    assert {name: value for name, value in named.items() if "gguf" not in name} == {}
