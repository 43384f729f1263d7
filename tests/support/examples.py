"""The examples of a document: its fenced blocks, and running them one after the other as a reader would."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

import goldstick
from goldstick.core.training import TrainingOptions
from goldstick.recipes.recipe import Recipe
from goldstick.training import TrainingTask
from tests.support.commands import run
from tests.support.small_networks import TinyStages, batches

_ROOT = Path(__file__).parents[2]
#: What users read.
DOCUMENTS = sorted([_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *(_ROOT / "docs").rglob("*.md")])
_TITLE = re.compile(r'title="([^"]+)"')
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: The file that shows it.
        line: Where it begins.
        language: What stands behind the fence; may be empty.
        text: What is in it.
        file: The file that it is, where ``title="FILE"`` stands behind the language.
    """

    page: str
    line: int
    language: str
    text: str
    file: str = ""

    @property
    def first(self) -> str:
        """Its first line, by which a list names it."""
        return self.text.partition("\n")[0].strip()

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Of a block of commands each of them with the lines of its output that are shown."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "bash":
            yield from ((line, []) for line in lines if line)
            return
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        assert starts and starts[0] == 0, f"{self.page}:{self.line}: a console block begins with '$ '"
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield lines[start].removeprefix("$ "), lines[start + 1 : end]


@cache
def _tokens(page: Path) -> Sequence[Token]:
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a document, in their order."""
    return [
        Block(
            page=page.name,
            line=token.map[0] + 1,
            language=token.info.partition(" ")[0].strip(),
            text=token.content,
            file=title[1] if (title := _TITLE.search(token.info)) else "",
        )
        for token in _tokens(page)
        if token.type in ("fence", "code_block") and token.map
    ]


def inline_code(page: Path) -> list[str]:
    """What stands between backticks in a document's text."""
    return [child.content for token in _tokens(page) for child in token.children or () if child.type == "code_inline"]


@dataclass
class Reader:
    """Somebody who does what a page says, in the current folder.

    Attributes:
        names: What Python examples find and leave.
        model: The language model that recipes are run on.
        dataset: The text that recipes look at which name none.
        not_run: First lines of commands that are left out.
    """

    names: dict[str, Any] = field(default_factory=dict)
    model: str = "model"
    dataset: str = "text.txt"
    not_run: frozenset[str] = frozenset()

    def does(self, block: Block) -> None:
        """Run a block; an error or another output than the one shown ends in an exception that names its place."""
        how: dict[str, Callable[[Block], None]] = {
            "python": self._python, "yaml": self._recipe, "console": self._commands, "bash": self._commands,
        }  # fmt: skip
        place = f"{block.page}:{block.line}"
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.file and block.language not in how:  # data, which what follows reads
            return
        assert block.language in how, f"{place}: nobody knows how to run {block.language!r}"
        try:
            how[block.language](block)
        except Exception as error:
            error.add_note(f"in the example at {place}, {block.first!r}")
            raise

    def _python(self, block: Block) -> None:
        module = types.ModuleType(f"example_{block.page.removesuffix('.md').replace('-', '_')}_{block.line}")
        module.__dict__.update(self.names)
        sys.modules[module.__name__] = module  # dataclasses look their module up there
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), module.__dict__)
        self.names.update({name: value for name, value in vars(module).items() if not name.startswith("__")})

    def _recipe(self, block: Block) -> None:
        value = yaml.safe_load(block.text)
        file = Path(f"recipe-{block.line}.yaml")
        file.write_text(block.text)
        stages = Recipe.load(file).stages
        trains = any(isinstance(getattr(stage, "training", None), TrainingOptions) for stage in stages)
        if trains and "calibration" not in value:  # which Python gives a task for
            done = goldstick.apply(TinyStages(), file, training=TrainingTask(batches=batches(2)))
            assert done.report.layers
            return
        data = [] if "dataset" in value.get("calibration", {}) else ["--dataset", self.dataset]
        self._goldstick(
            ["quantize", self.model, "-o", f"made-{block.line}", "-r", str(file), "--data-dir", "data", *data]
        )

    def _commands(self, block: Block) -> None:
        for line, shown in block.commands():
            program, *words = shlex.split(line, comments=True)
            if line.partition("  #")[0].strip() in self.not_run:
                continue
            assert program == "goldstick", f"{line!r} is neither goldstick's nor in the list of what is not run"
            said = self._goldstick(words)
            missing = [line for line in shown if not any(same_line(line, one) for one in said.splitlines())]
            assert not missing, f"{line!r} does not print {missing}, but\n{said}"

    def _goldstick(self, words: list[str]) -> str:
        output = Path(words[words.index("-o") + 1]) if "-o" in words else None
        if output is not None and output.is_dir():  # each command stands for itself
            shutil.rmtree(output)
        done = run(*words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, f"goldstick {shlex.join(words)} ends with {done.exit_code}:\n{done.output}"
        if words[0] == "quantize":
            assert output is not None
            _require_a_sound_report(output, words)
        return done.output


def _require_a_sound_report(output: Path, words: list[str]) -> None:
    """The checkpoint is proven, and calibrated on as many samples as the command says."""
    report = json.loads((output / "report.json").read_text())
    assert report["proof"]["passed"] is True
    if "--samples" in words:
        assert report["calibration"]["samples"] == int(words[words.index("--samples") + 1])
        assert any(
            layer["notes"].get("tokens", 0) for layer in report["layers"] if layer["algorithm"] in ("gptq", "rtn")
        )


def same_line(shown: str, said: str) -> bool:
    """Whether two lines are one but for spaces at the ends and the last digits of fractions; … stands for any rest."""
    if shown.endswith("…"):
        shown = shown.removesuffix("…").rstrip()
        said = said[: len(shown)]
    if _NUMBER.sub("#", shown).strip() != _NUMBER.sub("#", said).strip():
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(said), strict=True)
    return all(
        a == b or ("." in a and math.isclose(float(a), float(b), rel_tol=0.005, abs_tol=1e-12)) for a, b in pairs
    )
