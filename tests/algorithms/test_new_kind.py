"""A kind of algorithm that goldstick does not know: one file of somebody else's and one registration."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import goldstick
from goldstick.algorithms import ALGORITHMS
from goldstick.errors import RecipeError
from goldstick.jobs.save import finish
from goldstick.recipes.recipe import Recipe
from tests.support.commands import run
from tests.support.foreign_package import install
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES

#: It rounds nothing, folds nothing and trains nothing: it makes the float network sparse, which none of goldstick's do.
SPARSIFY = '''
from dataclasses import dataclass, field
from typing import ClassVar

from goldstick.algorithms.stage import DataRequirement, NetworkStage
from goldstick.core.edits import SetWeight
from goldstick.structure.targets import Targets


@dataclass(frozen=True, kw_only=True)
class Sparsify(NetworkStage):
    """The smaller half of every four weights of a row becomes 0."""

    name: ClassVar[str] = "sparsify"
    unforeseen: ClassVar[str] = "Which weights become 0 is known only when they are read."

    targets: Targets = field(default_factory=Targets)

    data_requirement = DataRequirement.NONE

    def sites(self, network):
        return self.targets.select(network)

    def act(self, run):
        for site in self.sites(run.network):
            weight = run.network.weight(site)
            fours = weight.unflatten(-1, (-1, 4))
            kept = fours.abs() >= fours.abs().topk(2).values[..., -1:]
            run.apply([SetWeight(site=site.name, weight=(fours * kept).flatten(-2))])
'''
RECIPE = {"stages": [{"sparsify": {"targets": {"include": ["*mlp*"]}}}, {"rtn": {"scheme": "w8a16"}}]}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package lies on the path, and the registry looks for packages anew."""
    entry_points = "[goldstick.algorithms]\nsparsify = somebodys_sparsify:Sparsify\n"
    folder = install(tmp_path / "packages", "somebodys", {"somebodys_sparsify": SPARSIFY}, entry_points)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(ALGORITHMS.__dict__, "_added", raising=False)
    yield
    ALGORITHMS.__dict__.pop("_added", None)
    sys.modules.pop("somebodys_sparsify", None)


def is_sparse(weight: torch.Tensor) -> bool:
    return bool(((weight.unflatten(-1, (-1, 4)) == 0).sum(-1) >= 2).all())


def test_it_is_carried_out_by_recipe_on_a_model_in_memory() -> None:
    model = FAMILIES["llama_gqa"]()
    done = goldstick.apply(model, RECIPE)
    for name, layer in done.model.named_modules():
        if name.endswith("_proj"):
            assert is_sparse(layer.weight.dequantize() if hasattr(layer.weight, "dequantize") else layer.weight) == (
                "mlp" in name
            ), name
    assert not any(is_sparse(value) for name, value in model.named_parameters() if "proj" in name)


def test_a_plan_and_the_command_know_what_it_needs_and_the_checkpoint_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    words = [str(tmp_path / "model"), "--recipe", str(tmp_path / "recipe.yaml")]
    shown = run("plan", *words, "--json")
    assert shown.exit_code == 0, shown.output
    plan = json.loads(shown.stdout)
    assert (plan["streams"], plan["by_blocks"]) == (False, False)
    assert plan["warnings"][0] == "Which weights become 0 is known only when they are read."
    made = run("quantize", *words, "-o", str(tmp_path / "out"), "--format", "native")
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "out" / "report.json").read_text())["proof"]["passed"] is True
    loaded = goldstick.load(tmp_path / "out")
    assert is_sparse(loaded.model.layers[0].mlp.down_proj.weight.dequantize())


def test_it_stands_where_its_kind_stands() -> None:
    late = {"stages": list(reversed(RECIPE["stages"]))}
    with pytest.raises(RecipeError, match=r"sparsify: it changes the float network, and rtn comes before it"):
        goldstick.apply(FAMILIES["llama_gqa"](), late)
    nowhere = {"stages": [{"sparsify": {"targets": {"include": ["*nothing*"]}}}, RECIPE["stages"][1]]}
    with pytest.raises(RecipeError, match=r"stages\[0\]\.sparsify: The pattern '\*nothing\*'"):
        goldstick.apply(FAMILIES["llama_gqa"](), nowhere)
    assert Recipe.load(RECIPE).stages[0].name == "sparsify"


def test_one_that_asks_for_a_training_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ALGORITHMS["sparsify"]
    monkeypatch.setattr(stage, "act", lambda self, run: run.train())
    with pytest.raises(RecipeError, match="sparsify asks for a training, and does not say"):
        goldstick.apply(FAMILIES["llama_gqa"](), RECIPE)
