"""``quantize`` with a size instead of a recipe: search and quantization are one run, which a kill does not undo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers.utils import logging

import goldstick
from goldstick.cli import main
from goldstick.errors import UsageError
from goldstick.jobs.quantize import quantize as quantization
from goldstick.jobs.search import ask, scores
from goldstick.jobs.search.journal import Journal
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.text import recipe_text
from goldstick.report.report import Report
from tests.support.commands import run

SCHEMES = "w2a16-g32,w4a16-g32,w8a16-channel"

pytestmark = pytest.mark.usefixtures("all_proofs_here")


class Killed(BaseException):
    """What a kill is here."""


def command(source: Path, output: Path, *options: str) -> list[str]:
    return [
        "quantize", str(source), "-o", str(output), "--share", "50%", "--schemes", SCHEMES, "--method", "rtn",
        "--dataset", str(source / "text.txt"), "--search-samples", "2", "--search-seq-len", "16",
        "--held-out-rows", "3", *options,
    ]  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def made(source_with_text: Path, tmp_path_factory: pytest.TempPathFactory, all_proofs_here: None) -> Path:
    output = tmp_path_factory.mktemp("made") / "out"
    done = run(*command(source_with_text, output))
    assert done.exit_code == 0, done.output
    assert "held-out rows" in done.output and "one scheme for all" in done.output
    return output


def test_the_files_have_the_size_and_the_report_says_why(made: Path, source_with_text: Path) -> None:
    report = Report.read(made)
    written = sum(len(content) for content in contents(made).values())
    whole = sum(path.stat().st_size for path in source_with_text.glob("*.safetensors"))
    assert written == report.search["bytes"] <= 0.5 * whole
    assert report.search["asked"] == {"share": 0.5, "metric": "perplexity"}
    page = (made / "report.html").read_text()
    for group in report.search["groups"]:
        assert group["name"] in page
    assert "What each layer got" in page and (made / "search.html").is_file()
    assert [path.name for path in made.parent.iterdir()] == ["out"]


def test_python_finds_the_same_recipe(made: Path, source_with_text: Path, tmp_path: Path) -> None:
    recipe = goldstick.search(
        source_with_text, share=0.5, schemes=SCHEMES.split(","), method="rtn",
        dataset=str(source_with_text / "text.txt"), samples=2, seq_len=16, held_out_rows=3,
    )  # fmt: skip
    report = Report.read(made)
    assert recipe.model_dump(mode="json") == report.recipe
    assert json.loads(json.dumps(recipe.search["groups"])) == report.search["groups"]
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe_text(recipe))
    assert Recipe.load(file).model_dump() == recipe.model_dump()


@pytest.mark.parametrize("moment", ["while it searches", "while it writes"])
def test_a_run_that_is_killed_goes_on(
    moment: str, made: Path, source_with_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        if moment == "while it searches":
            keep, kept = Journal.keep, []

            def killing(self: Journal, key: str, value: float | list[float]) -> None:
                keep(self, key, value)
                kept.append(key)
                if len(kept) == 4:
                    raise Killed

            patch.setattr(Journal, "keep", killing)
        else:
            patch.setattr(quantization, "write_rest", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed) as caught:
            CliRunner().invoke(main, command(source_with_text, output), catch_exceptions=False)
    if moment == "while it searches":
        assert "goes on with it" in " ".join(caught.value.__notes__)
    journal = tmp_path / ".out.search.json"
    before = json.loads(journal.read_text())["known"]
    measured: list[str] = []
    keep_again = Journal.keep

    def watching(self: Journal, key: str, value: float | list[float]) -> None:
        measured.append(key)
        keep_again(self, key, value)

    monkeypatch.setattr(Journal, "keep", watching)
    monkeypatch.setattr(scores, "gradient_scores", None)  # they are known
    done = run(*command(source_with_text, output, "--resume"))
    assert done.exit_code == 0, done.output
    assert not set(measured) & set(before)
    assert bool(measured) == (moment == "while it searches")
    assert contents(output) == contents(made)
    assert not journal.exists()


def test_a_finished_run_is_not_searched_for_again(
    made: Path, source_with_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "search_recipe", None)
    done = run(*command(source_with_text, made, "--resume"))
    assert done.exit_code == 0, done.output
    assert "finished already" in done.stderr


def test_what_another_search_made_is_not_taken_for_this_ones(
    source_with_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, held = tmp_path / "text.txt", tmp_path / "held.txt"
    words = (source_with_text / "text.txt").read_text()
    text.write_text(words)
    held.write_text(words)
    output = tmp_path / "out"
    given = ("--effort", "fast", "--dataset", str(text), "--held-out", str(held))
    assert run(*command(source_with_text, output, *given)).exit_code == 0
    before = contents(output)

    def again(*options: str) -> str:
        done = run(*command(source_with_text, output, *given, "--resume", *options))
        assert done.exit_code == (0 if "finished already" in done.stderr else 1), done.output
        return " ".join(done.stderr.split())

    with monkeypatch.context() as patch:
        patch.setattr(ask, "search_recipe", None)
        assert "finished already" in again()
        refused = "exists already and was made {}. Choose another -o, or give --overwrite."
        assert refused.format("by another search, or of another source") in again("--seed", "5")
        for file in (text, held):
            file.write_text(words.swapcase())
            assert refused.format("of a search on other texts") in again()
            file.write_text(words)
    assert contents(output) == before
    held.write_text(words.swapcase())
    done = run(*command(source_with_text, output, *given, "--resume", "--overwrite"))
    assert done.exit_code == 0 and "finished already" not in done.stderr, done.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bits", "4", "-r", "rtn-w8a16"], "leave it out"),
        (["--size", "4GB", "--dry-run"], "goldstick plan"),
        (["--held-out-rows", "4"], "say --size, --bits, --share or --max-loss"),
        (["--size", "4GB", "--bits", "4"], "Ask for one thing"),
        (["--size", "4GB", "--proof", "tensors"], "give --method rtn without --prune"),
        (["--size", "4GB", "--proof", "tensors", "--method", "rtn", "--prune"], "leave --proof out"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], says: str, source_with_text: Path, tmp_path: Path
) -> None:
    done = run("quantize", str(source_with_text), "-o", str(tmp_path / "out"), *options)
    assert done.exit_code == 2 and says in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_excluded_stays_as_it_is(source_with_text: Path) -> None:
    options = {"dataset": str(source_with_text / "text.txt"), "samples": 2, "seq_len": 16, "held_out_rows": 3}
    recipe = goldstick.search(
        source_with_text, share=0.7, schemes=["w2a16-g32", "w8a16-channel"], exclude=["*down_proj"], method="rtn",
        effort="fast", **options,
    )  # type: ignore[arg-type]  # fmt: skip
    assert not any("down_proj" in group["name"] for group in recipe.search["groups"])
    with pytest.raises(UsageError, match="Ask for one thing"):
        goldstick.search(source_with_text, **options)  # type: ignore[arg-type]


def test_libraries_are_quiet_while_a_recipe_is_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []

    def search(*_: object, **__: object) -> Recipe:
        shown.append(logging.is_progress_bar_enabled())
        raise UsageError("seen")

    monkeypatch.setattr("goldstick.api.search", search)
    monkeypatch.setattr(logging, "_tqdm_active", True)
    assert "seen" in run("quantize", "reference", "-o", str(tmp_path / "out"), "--share", "50%").output
    assert shown == [False]
