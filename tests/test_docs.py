"""What the documents show is what works."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import click
import pytest
import torch
import yaml

from goldstick.cli import main
from goldstick.recipes.recipe import Recipe
from goldstick.structure import Network

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def blocks(document: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(document.read_text(encoding="utf-8")) if name == language]


def shown_commands() -> list[tuple[str, str]]:
    return [
        (document.name, line.removeprefix("$ ").strip())
        for document in DOCUMENTS
        for text in blocks(document, "bash") + blocks(document, "console")
        for line in text.replace("\\\n", " ").splitlines()
        if line.removeprefix("$ ").startswith("goldstick ")
    ]


def test_the_documents_show_commands() -> None:
    assert len(shown_commands()) >= 8


@pytest.mark.parametrize(("document", "line"), shown_commands())
def test_every_command_shown_is_understood(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    with click.Context(main, info_name="goldstick") as context:
        while isinstance(command, click.Group):
            name = words.pop(0)
            found = command.get_command(context, name)
            assert found is not None, f"{document} shows {line!r}, and there is no command {name!r}"
            command = found
        if "--help" in words:
            return
        command.parse_args(click.Context(command, info_name=command.name), words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    lost = [target for target in LINK.findall(document.read_text(encoding="utf-8"))
            if not (document.parent / target).exists()]  # fmt: skip
    assert lost == []


def shown_recipes() -> list[tuple[str, str]]:
    return [(document.name, text) for document in DOCUMENTS for text in blocks(document, "yaml")]


@pytest.mark.parametrize(("document", "text"), shown_recipes())
def test_every_recipe_shown_is_legal(document: str, text: str) -> None:
    assert Recipe.load(yaml.safe_load(text)).stages, f"{document} shows a recipe without stages"


def test_the_algorithm_in_the_guide_runs_and_has_three_levels() -> None:
    (code,) = blocks(ROOT / "docs" / "writing-an-algorithm.md", "python")
    module = types.ModuleType("guide")
    sys.modules["guide"] = module  # dataclasses look their module up there
    exec(compile(code, "writing-an-algorithm.md", "exec"), module.__dict__)
    network = Network(torch.nn.Sequential(torch.nn.Linear(64, 8)))
    (site,) = network.sites
    algorithm = module.Ternary(threshold=0.6)
    (edit,) = algorithm.solve(site, network.weight(site), algorithm.attach(site), algorithm.scheme_for(site))
    assert all(len(row.unique()) == 3 for row in edit.tensor.dequantize())


NAMED_TEST = re.compile(r"`(test_\w+)`")


def names_of_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("document", ["security.md", "claims.md"])
def test_every_test_that_holds_a_promise_exists(document: str) -> None:
    named = NAMED_TEST.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    assert len(named) >= 8
    assert sorted(set(named) - names_of_tests()) == []


def test_every_claim_of_the_readme_is_held_by_a_test() -> None:
    """The bold beginnings of the README's list stand in docs/claims.md, each with its tests."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    claims = re.findall(r"^- \*\*(.+?)\*\*", readme, re.MULTILINE)
    rows = re.findall(r"^\| (.+?) \| .*?`(?:test_\w+)`", (ROOT / "docs" / "claims.md").read_text(), re.MULTILINE)
    assert len(claims) >= 7
    assert [claim for claim in claims if claim not in rows] == []
