"""What the documents show is what works."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml
from safetensors import safe_open

from goldstick.algorithms import ALGORITHMS
from goldstick.cli import main
from goldstick.errors import RecipeError
from goldstick.recipes.recipe import Recipe
from goldstick.structure import Network
from tests.support.examples import DOCUMENTS, blocks_of, inline_code
from tests.support.foreign_package import install
from tools.docs.__main__ import PARTS, written
from tools.docs.marked import replaced

ROOT = Path(__file__).parent.parent
#: What looks like a recipe in words.
RECIPE = re.compile(r"(?:rtn|gptq|gptaq|awq|imatrix|hqq|smoothquant|fold|rotate)-[\w-]+")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def blocks(document: Path, language: str) -> list[str]:
    return [block.text for block in blocks_of(document) if block.language == language]


def shown_commands() -> list[tuple[str, str]]:
    """Every command in the documents' text, and those in their blocks, which test_examples.py runs but for a few."""
    shown = [(page.name, line) for page in DOCUMENTS for line in inline_code(page)]
    for page in DOCUMENTS:
        commands = [block for block in blocks_of(page) if block.language in ("bash", "console")]
        shown += [(page.name, line) for block in commands for line, _ in block.commands()]
    return [
        (name, line) for name, line in shown if line.startswith("goldstick ") and not line.startswith("goldstick --")
    ]


def test_the_documents_show_commands() -> None:
    assert len(shown_commands()) >= 60


@pytest.mark.parametrize(("document", "line"), shown_commands())
def test_every_command_shown_has_the_options_that_are_shown(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    with click.Context(main, info_name="goldstick") as context:
        while isinstance(command, click.Group):
            name = words.pop(0)
            found = command.get_command(context, name)
            assert found is not None, f"{document} shows {line!r}, and there is no command {name!r}"
            command = found
        options = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
        assert [word for word in words if word.startswith("-") and word not in options] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    lost = [target for target in LINK.findall(document.read_text(encoding="utf-8"))
            if not (document.parent / target).exists()]  # fmt: skip
    assert lost == []


def test_the_algorithm_in_the_guide_runs_and_has_three_levels() -> None:
    (code,) = blocks(ROOT / "docs" / "writing-an-algorithm.md", "python")
    module = types.ModuleType("guide")
    sys.modules["guide"] = module  # dataclasses look their module up there
    exec(compile(code, "writing-an-algorithm.md", "exec"), module.__dict__)
    network = Network(torch.nn.Sequential(torch.nn.Linear(64, 8)))
    (site,) = network.sites
    for scheme, groups in (("w2a16-channel", 1), ("w4a16-g16", 4)):
        algorithm = module.Ternary(scheme=scheme, threshold=0.6)
        (edit,) = algorithm.solve(site, network.weight(site), algorithm.attach(site), algorithm.scheme_for(site))
        assert edit.tensor.scale.shape == (8, groups)
        assert all(len(group.unique()) == 3 for group in edit.tensor.dequantize().reshape(8 * groups, -1))
    assert "threshold:" in module.Ternary.__doc__, "the contract tests ask for every option"
    with pytest.raises(RecipeError, match="symmetric grid of integers"):
        module.Ternary(scheme="nf4a16")


#: Runs commands one after the other, so that torch is imported once, with a line between what they print.
COMMANDS = (
    "import json, sys\n"
    "from goldstick.cli import main\n"
    "for words in json.loads(sys.argv[1]):\n"
    "    main(words, standalone_mode=False)\n"
    "    print(chr(30), flush=True)\n"
)
#: What guides show and how it is used, by the name of what they make.
GUIDES = {
    "task": ("how-to/task.md", ["evaluate reference --tasks capitals --data-dir data --no-cache --json"]),
    "algorithm": (
        "writing-an-algorithm.md",
        ["quantize reference -r recipe.yaml -o ternary", "recipes show ternary-w2a16-channel"],
    ),
    "format": (
        "writing-a-format.md",
        [
            "quantize reference -r rtn-w8a16 --format rows8 -o rows8",
            "doctor rows8",
            "export rows8 --format native -o native --proof tensors",
            "export native --format rows8 -o back --proof tensors",
        ],
    ),
}


def install_the_guide(name: str, folder: Path) -> str:
    """Install what a guide shows as a package of somebody else's; the path that it lies on."""
    (code,) = blocks(ROOT / "docs" / name, "python")
    (project,) = blocks(ROOT / "docs" / name, "toml")
    title = code.removeprefix('"""').partition(".py:")[0]
    ((group, points),) = tomllib.loads(project)["project"]["entry-points"].items()
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    return str(install(folder, f"guide-{title}", {title: code}, f"[{group}]\n{lines}\n"))


@dataclass(frozen=True)
class Guides:
    """The folder in which the commands of all guides have run, and what each of them printed."""

    folder: Path
    said: dict[str, list[str]]


@pytest.fixture(scope="module")
def guides(tmp_path_factory: pytest.TempPathFactory) -> Guides:
    """The packages of all guides, used one after the other in a process of their own."""
    folder = tmp_path_factory.mktemp("guides")
    paths = [install_the_guide(page, folder / name) for name, (page, _) in GUIDES.items()]
    (folder / "data").mkdir()
    rows = [{"question": f"{land} has the capital", "choices": ["Oslo", "Rome"], "answer": 0} for land in ("N", "I")]
    (folder / "data" / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text("stages:\n  - ternary: {threshold: 0.6}\n")
    commands = [(name, command) for name, (_, commands) in GUIDES.items() for command in commands]
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([command.split() for _, command in commands])],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said: dict[str, list[str]] = {name: [] for name in GUIDES}
    for (name, _), printed in zip(commands, ended.stdout.split("\x1e\n")[:-1], strict=True):
        said[name].append(printed)
    return Guides(folder, said)


def test_the_task_in_the_guide_measures_a_model(guides: Guides) -> None:
    (found,) = json.loads(guides.said["task"][0])["tasks"].values()
    assert (found["n"], found["protocol"]) == (2, "loglik@1")
    assert found["metrics"]["accuracy"] in (0.0, 50.0, 100.0)


def test_the_algorithm_in_the_guide_quantizes_the_bundled_model_and_is_proven(guides: Guides) -> None:
    made, recipe = guides.said["algorithm"]
    assert "proof: " in made
    assert json.loads((guides.folder / "ternary" / "goldstick.json").read_text())["proof"]["passed"] is True
    shown = re.search(r"^stages:\n(?:[- ].*\n)+", recipe, re.MULTILINE)
    assert shown is not None and yaml.safe_load(shown[0])["stages"][0].keys() == {"ternary"}


def test_the_format_in_the_guide_is_written_proven_read_and_exported(guides: Guides) -> None:
    assert "0 faults, 0 remarks" in guides.said["format"][1]
    made = guides.folder / "rows8"
    manifest = json.loads((made / "goldstick.json").read_text())
    assert (manifest["format"], manifest["proof"]["passed"]) == ("rows8", True)
    assert json.loads((made / "config.json").read_text())["quantization_config"]["quant_method"] == "rows8"
    with safe_open(made / "model.safetensors", "pt") as file:
        assert any(name.endswith(".weight_int8") for name in file.keys())  # noqa: SIM118  no iterator
    weights = [guides.folder / folder / "model.safetensors" for folder in ("rows8", "back")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


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


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PARTS)
def test_what_scripts_write_into_pages_is_up_to_date(page: str) -> None:
    """Where this fails, ``python -m tools.docs`` writes the page anew."""
    assert (ROOT / page).read_text(encoding="utf-8") == written(page)


def test_a_part_that_a_page_lacks_is_an_error() -> None:
    page = "before\n<!-- figures: written by tools/docs -->\nold\n<!-- end of figures -->\nbehind\n"
    assert "old" not in replaced(page, "figures", "new") and "\nnew\n" in replaced(page, "figures", "new")
    with pytest.raises(ValueError, match="once each"):
        replaced(page, "others", "new")


def test_every_option_of_every_stage_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "recipe-options.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| [^|]* \|  \|$", page, re.MULTILINE) == []
    assert [name for name in ALGORITHMS if f"### {name}\n" not in page] == []


def test_every_recipe_that_is_recommended_is_one() -> None:
    pages = [ROOT / "docs" / "which-recipe.md", *(ROOT / "docs" / "how-to").glob("*.md")]
    named = {code for page in pages for code in inline_code(page) if RECIPE.fullmatch(code)}
    assert len(named) >= 15
    for sentence in sorted(named):
        Recipe.load(sentence)


class _Nav(yaml.SafeLoader):
    """Reads mkdocs.yml without what it says in Python."""


_Nav.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def test_every_page_has_a_place_on_the_site_and_a_name_of_its_own() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Nav)

    def listed(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
            return
        for one in entry.values() if isinstance(entry, dict) else entry:
            yield from listed(one)

    files = (page for ending in ("md", "ipynb") for page in (ROOT / "docs").rglob(f"*.{ending}"))
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in files if ".ipynb_checkpoints" not in page.parts)
    assert sorted(listed(settings["nav"])) == pages, "each page stands once in the nav of mkdocs.yml"
    names = [name for name in (Path(page).name for page in pages) if name != "index.md"]
    assert len(names) == len(set(names)), "tests/support/example_pages.py knows pages by their names"
