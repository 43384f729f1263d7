"""What depends on a storage format stands in its file: no other file of goldstick names one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import goldstick
from goldstick.formats import FORMATS

PACKAGE = Path(goldstick.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

#: The words that name an algorithm, a scheme or what a KV cache holds as well, where they do.
ALSO = {
    "algorithms/kv_cache.py": {"fp8"},
    "checkpoint/kv_cache.py": {"fp8"},
    "core/kv_cache.py": {"fp8"},
    "nn/kv_cache.py": {"fp8"},
    "core/scheme.py": {"fp8", "mxfp4"},
    "algorithms/__init__.py": {"gptq", "awq"},
    "algorithms/gptq.py": {"gptq"},
    "algorithms/awq.py": {"awq"},
    "cli/search_options.py": {"gptq"},
    "jobs/search/ask.py": {"gptq"},
    "jobs/search/for_sensitivity.py": {"gptq"},
    "jobs/search/layer_inputs.py": {"gptq"},
    "jobs/search/layers.py": {"gptq"},
    "jobs/search/find.py": {"gptq"},
    "recipes/words.py": {"gptq", "awq"},
}


def files_of_formats() -> set[Path]:
    """The registry and the file of each format."""
    return {PACKAGE / "formats" / "__init__.py", *(Path(inspect.getfile(type(one))) for one in FORMATS.values())}


def names_in(tree: ast.AST) -> Iterator[str]:
    """The constants that are names of formats; a docstring is never just a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in set(FORMATS):
            yield node.value


def test_no_file_but_its_own_names_a_format() -> None:
    own = files_of_formats()
    assert len(own) >= 6
    found = {
        str(path.relative_to(PACKAGE)): set(names_in(ast.parse(path.read_text(encoding="utf-8"))))
        for path in FILES
        if path not in own
    }
    assert {file: names for file, names in found.items() if names} == ALSO


def test_a_comparison_a_list_and_a_key_with_a_name_would_be_found() -> None:
    source = "if storage.name == 'gguf' or storage.name in ('awq', 'x'):\n    FORMATS['native']\n"
    assert sorted(names_in(ast.parse(source))) == ["awq", "gguf", "native"]
