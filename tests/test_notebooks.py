"""Every notebook runs from its first cell to its last, and what it asserts holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify as verify_module
from tests.support.examples import Block, Reader
from tests.support.proofs import prove_here

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


def code_of(notebook: Path) -> Iterator[Block]:
    """The code cells: Python, or commands that begin with ``!``."""
    for number, cell in enumerate(cells(notebook)):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            lines = text.replace("\\\n", " ").splitlines()
            commands = text.startswith("!")
            assert not commands or all(line.startswith("!") for line in lines), f"{notebook.name}, cell {number}"
            language = "bash" if commands else "python"
            text = "\n".join(line.removeprefix("!") for line in lines) if commands else text
            yield Block(page=notebook.name, line=number, language=language, text=text)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers, for what compressed-tensors calls
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_what_it_asserts_holds(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    monkeypatch.setattr(verify_module, "prove", prove_here)
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    for block in code_of(notebook):
        reader.does(block)


def test_there_are_notebooks_whose_links_lead_somewhere_and_which_keep_no_outputs() -> None:
    assert len(NOTEBOOKS) >= 3
    for notebook in NOTEBOOKS:
        code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
        assert any("assert " in "".join(cell["source"]) for cell in code), f"{notebook.name} asserts nothing"
        text = "\n".join("".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "markdown")
        links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
        assert links, f"{notebook.name} leads nowhere"
        assert [link for link in links if not (notebook.parent / link).is_file()] == []
        kept = [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None]
        assert kept == [], f"{notebook.name} keeps outputs; clear them"
