"""A search that may take channels, too: where that is worth it, what it promises, and what it refuses."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import goldstick
from goldstick.algorithms import SCOP
from goldstick.cli import main
from goldstick.core.notices import OtherSearchWarning
from goldstick.errors import RecipeError, UsageError
from goldstick.jobs.save import finish
from goldstick.jobs.search import find
from goldstick.jobs.search.channels import Prospect, channels_kept
from goldstick.jobs.search.find import search_recipe
from goldstick.jobs.search.journal import Journal
from goldstick.jobs.search.layers import find_layers
from goldstick.jobs.search.possible import smallest
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.target import Found, Target
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.text import recipe_text
from goldstick.report import Report
from goldstick.structure.pruning.prunable import Member, Prunable
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

SCHEMES = ("w2a16-g32", "w4a16-g32", "w8a16-channel")
UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama half of whose first MLP does nothing, with a tokenizer and text.txt; never to be changed."""
    directory = tmp_path_factory.mktemp("idle")
    model: Any = FAMILIES["llama_gqa"]()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[:, ::2] = 0
    model.save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "text.txt").write_text("The harbour lies on the north side of the island. " * 8)
    return directory


def data(source: Path) -> Calibration:
    return Calibration(dataset=str(source / "text.txt"), samples=2, seq_len=16)


def found_for(source: Path, target: Target, **options: object) -> Found:
    given = {"schemes": SCHEMES, "method": "rtn", "held_out_rows": 4, "effort": "fast", "prune": True}
    given |= {"calibration": data(source)} | options
    return search_recipe(source, target, text=data(source), **given)  # type: ignore[arg-type]


def least_of(source: Path) -> int:
    return smallest(find_layers(source, RUNTIMES["goldstick"], method="rtn", calibration=data(source), schemes=SCHEMES))


def files_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def test_idle_channels_go_and_the_file_is_as_large_as_promised(
    idle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = int(1.5 * least_of(idle))
    found = found_for(idle, Target(size=asked))
    whole = found_for(idle, Target(size=asked), prune=False)
    stage = found.recipe.stages[0]
    assert isinstance(stage, SCOP)
    (kept,) = set(stage.keep.values())
    account = found.record["pruning"]
    assert account["pruned"]["kl"] < account["whole_model"]["kl"]
    assert account["whole_model"]["bytes"] == whole.nbytes
    monkeypatch.setattr(finish, "prove", prove_here)
    made = goldstick.quantize(idle, found.recipe, output=tmp_path / "made")
    assert files_of(made.directory) == found.nbytes <= asked
    (pruning,) = Report.read(made.directory).pruning
    first = next(layer for layer in pruning["layers"] if layer["kept"] < layer["units"])
    assert first["kept"] == kept
    assert all(channel % 2 == 0 for channel in first["dropped"])  # those that do nothing
    model: Any = goldstick.load(made.directory)
    assert model.model.layers[0].mlp.down_proj.in_features == kept
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe_text(found.recipe))
    assert Recipe.load(file).model_dump() == found.recipe.model_dump()


def test_where_channels_are_worth_their_bytes_all_stay(source_with_text: Path) -> None:
    found = found_for(source_with_text, Target(size=4 * least_of(source_with_text)))
    assert not any(isinstance(stage, SCOP) for stage in found.recipe.stages)
    assert all(one["kept"] == one["units"] for one in found.record["pruning"]["channels"])
    whole = found_for(source_with_text, Target(size=4 * least_of(source_with_text)), prune=False)
    assert found.recipe == whole.recipe


def test_smaller_than_the_smallest_is_made_without_channels(idle: Path) -> None:
    least = least_of(idle)
    found = found_for(idle, Target(size=least - 1000))
    assert found.nbytes <= least - 1000
    assert isinstance(found.recipe.stages[0], SCOP)
    with pytest.raises(UsageError, match="also with half of the channels"):
        found_for(idle, Target(size=least // 2))


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (Target(max_loss=0.1), {}, "Channels go for a size"),
        (Target(bits=6.0), {"runtime": "vllm", "schemes": ()}, "held by the native format alone"),
        (Target(bits=100.0), {}, "hold the model as it is"),
        (Target(bits=8.0), {"exclude": ("*mlp*", "*attn*")}, "No layer can lose channels here"),
    ],
)
def test_what_channels_cannot_go_for_is_refused(
    target: Target, options: dict[str, object], words: str, source_with_text: Path
) -> None:
    with pytest.raises((UsageError, RecipeError), match=words):
        found_for(source_with_text, target, **options)


def test_that_no_layer_can_lose_channels_is_said_before_anything_is_measured(
    source_with_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "Search", None)
    with pytest.raises(RecipeError, match="No layer can lose channels here"):
        found_for(source_with_text, Target(bits=8.0), exclude=("*mlp*",))


@pytest.fixture(scope="module")
def uninterrupted(idle: Path) -> Found:
    return found_for(idle, Target(size=int(1.5 * least_of(idle))), effort="default")


def test_a_search_that_is_killed_finds_the_same(
    uninterrupted: Found, idle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once in each of its phases, and each time gone on with."""
    target = Target(size=int(1.5 * least_of(idle)))
    keep, phases = Journal.keep, ["channels ", "without ", "made "]

    def killing(self: Journal, key: str, value: float | list[float]) -> None:
        keep(self, key, value)
        if key.startswith(phases[0]):
            del phases[0]
            raise Killed

    journal = tmp_path / "journal.json"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "keep", killing)
        while phases:
            with pytest.raises(Killed):
                found_for(idle, target, effort="default", journal=journal)
    again = found_for(idle, target, effort="default", journal=journal)
    assert again.recipe == uninterrupted.recipe
    assert again.record == uninterrupted.record


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_journal_is_of_the_text_that_channels_are_scored_and_layers_calibrated_on(
    method: str, idle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "model", Target(size=int(1.5 * least_of(idle)))
    shutil.copytree(idle, source)
    other = tmp_path / "other.txt"
    given = data(source).model_copy(update={"dataset": str(other)})
    measured: list[str] = []
    keep, keep_all = Journal.keep, Journal.keep_all
    monkeypatch.setattr(Journal, "keep", lambda self, *told: measured.append(told[0]) or keep(self, *told))
    monkeypatch.setattr(Journal, "keep_all", lambda self, told: measured.extend(told) or keep_all(self, told))

    def searched(text: str) -> list[str]:
        other.write_text(text)
        measured.clear()
        options = {"method": method, "prune": method == "rtn", "journal": tmp_path / "journal.json"}
        found_for(source, target, calibration=given, **options)
        return list(measured)

    first = searched("The harbour lies on the north side of the island. " * 8)
    assert first and not searched("The harbour lies on the north side of the island. " * 8)
    with pytest.warns(OtherSearchWarning, match="Another search has measured"):
        assert searched("A letter came from the city where nobody had been for years. " * 8)


def test_the_command_says_which_channels_go(idle: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(idle, source)
    (source / "text.txt").write_text("The harbour lies on the north side of the island. " * 400)
    output = tmp_path / "small.yaml"
    command = [
        "search", str(source), "--size", str(int(1.5 * least_of(idle))), "--schemes", ",".join(SCHEMES), "--prune",
        "--method", "rtn", "--dataset", str(source / "text.txt"), "--samples", "2", "--seq-len", "16",
        "--held-out-rows", "4", "--effort", "fast", "-o", str(output),
    ]  # fmt: skip
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "of 128; once rounded, KL" in " ".join(done.output.split())
    assert "Costs alone" in (tmp_path / "small.html").read_text()
    assert isinstance(Recipe.load(output).stages[0], SCOP)


def test_how_many_channels_stay_is_the_enumerated_optimum() -> None:
    generator = torch.Generator().manual_seed(3)

    def drawn(count: int) -> list[float]:
        return torch.rand(count, generator=generator).tolist()

    sizes = {"w2": 1024, "w4": 2048, "float": 8192}
    names = [UP, DOWN, "model.layers.0.self_attn.q_proj"]
    sites = [SimpleNamespace(name=f"{name}.weight", module=name) for name in names]
    groups = [SimpleNamespace(name=site.name, sites=(site,), nbytes=sizes) for site in sites]
    members = (
        Member(module=UP, side="output", units=tuple(range(8))),
        Member(module=DOWN, side="input", units=tuple(range(8))),
    )
    group = Prunable(name=UP, units=8, heads=False, members=members, norm=None, scattered=None, error=0.0)
    for room in (3 * 1024 - 100, 4000, 6000, 9000, 20000):
        costs = sorted(drawn(3), reverse=True)
        losses = {
            (one.name, scheme): loss for one in groups for scheme, loss in zip(sizes, [*costs[:2], 0.0], strict=True)
        }
        prospect = Prospect(group=group, losses={8: 0.0, 6: costs[2] / 3, 4: costs[2]})
        search: Any = SimpleNamespace(
            layers=SimpleNamespace(groups=groups), scores=SimpleNamespace(losses=lambda known=losses: known)
        )
        best: tuple[float, int] = (float("inf"), 0)
        for kept, *schemes in itertools.product(prospect.losses, sizes, sizes, sizes):
            nbytes = sum(int(sizes[scheme] * kept / 8) for scheme in schemes[:2]) + sizes[schemes[2]]
            loss = prospect.losses[kept] + sum(
                0.5 * losses[one.name, scheme] for one, scheme in zip(groups, schemes, strict=True)
            )
            if nbytes <= room and loss < best[0]:
                best = loss, kept
        found = channels_kept(search, [prospect], room, 0.5)
        assert found.get(UP, 8) == best[1]


def test_losses_of_channels_are_those_of_the_model_without_them(idle: Path) -> None:
    found = found_for(idle, Target(size=int(1.5 * least_of(idle))))
    channels = {one["name"]: dict(one["tried"]) for one in found.record["pruning"]["channels"]}
    assert set(channels) == {name.replace("up", "gate").replace("0", str(layer)) for name in (UP,) for layer in (0, 1)}
    first, second = channels.values()
    assert abs(first[64]) < 1e-12 < 1e-6 < second[64]
    assert list(first) == [96, 64]
