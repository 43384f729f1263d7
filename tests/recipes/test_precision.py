"""Bits for each layer within a budget: against every choice there is, and what a recipe makes of it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import goldstick
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.recipes.precision import Measured, choose_widths
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.schema import recipe_schema
from tests.support.time_limit import within

WIDTHS = (2, 3, 4, 8)


def layers(seed: int, count: int = 5) -> list[Measured]:
    generator = random.Random(seed)
    made = []
    for number in range(count):
        scale = 10 ** generator.uniform(-3, 0)
        made.append(
            Measured(
                name=f"layers.{number}.up",
                elements=generator.choice([1024, 2048, 4096]),
                kl={bits: scale * generator.uniform(0.7, 1.3) * 4.0 ** (2 - bits) for bits in WIDTHS},
                stored={bits: bits + 0.5 for bits in WIDTHS},
            )
        )
    return made


def cost(chosen: dict[str, int], among: list[Measured]) -> float:
    return sum(layer.kl[chosen[layer.name]] for layer in among)


def mean_bits(chosen: dict[str, int], among: list[Measured]) -> float:
    bits = sum(layer.elements * layer.stored[chosen[layer.name]] for layer in among)
    return bits / sum(layer.elements for layer in among)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [2.5, 3.1, 4.0, 5.5, 8.5])
def test_the_choice_keeps_the_budget_and_is_close_to_the_best_of_all_choices(seed: int, budget: float) -> None:
    among = layers(seed)
    names = [layer.name for layer in among]
    chosen = choose_widths(among, budget)
    assert mean_bits(chosen, among) <= budget + 1e-9
    every = [dict(zip(names, widths, strict=True)) for widths in itertools.product(WIDTHS, repeat=len(among))]
    fitting = [one for one in every if mean_bits(one, among) <= budget + 1e-9]
    best = min(cost(one, among) for one in fitting)
    same_for_all = [cost(one, among) for one in fitting if len(set(one.values())) == 1]
    assert cost(chosen, among) <= min(same_for_all)
    assert cost(chosen, among) <= 2.0 * best
    if budget in (2.5, 8.5):
        assert cost(chosen, among) == best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [3.1, 4.0, 5.5])
def test_the_choice_is_that_of_the_best_step_again_and_again(seed: int, budget: float) -> None:
    among = layers(seed, count=40)
    total = sum(layer.elements for layer in among)
    chosen = {layer.name: WIDTHS[0] for layer in among}
    while True:
        spare = (budget - mean_bits(chosen, among)) * total
        steps = [
            ((layer.kl[chosen[layer.name]] - layer.kl[bits]) / price, layer.name, bits)
            for layer in among
            for bits in WIDTHS
            if bits > chosen[layer.name]
            and (price := layer.elements * (layer.stored[bits] - layer.stored[chosen[layer.name]])) <= spare + 1e-6
            and layer.kl[chosen[layer.name]] > layer.kl[bits]
        ]
        if not steps:
            break
        _, name, bits = max(steps)
        chosen[name] = bits
    found = choose_widths(among, budget)
    assert found == chosen or len(set(found.values())) == 1


def test_the_widths_of_a_giant_are_chosen_in_seconds() -> None:
    with within(seconds=10):
        chosen = choose_widths(layers(0, count=20_000), 4.0)
    assert len(chosen) == 20_000 and set(chosen.values()) <= set(WIDTHS)


def test_a_layer_that_gets_no_better_with_more_bits_keeps_the_fewest() -> None:
    deaf = Measured(name="deaf", elements=1024, kl=dict.fromkeys(WIDTHS, 0.1), stored={b: b + 0.5 for b in WIDTHS})
    keen = Measured(name="keen", elements=1024, kl={2: 9, 3: 3, 4: 1, 8: 0}, stored={b: b + 0.5 for b in WIDTHS})
    assert choose_widths([deaf, keen], 5.5) == {"deaf": 2, "keen": 8}


def test_a_budget_below_the_fewest_bits_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"2\.4 is less than the 2\.5 stored bits that 2-bit weights"):
        choose_widths(layers(0), 2.4)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    found = [
        {
            "name": layer.name,
            "shape": [layer.elements // 32, 32],
            "elements": layer.elements,
            "kl": {str(bits): value for bits, value in layer.kl.items()},
            "bits_per_weight": {str(bits): value for bits, value in layer.stored.items()},
        }
        for layer in layers(1)
    ]
    grid = {"granularity": "group", "group_size": 32, "symmetric": True}
    (tmp_path / "found.json").write_text(json.dumps({"grid": grid, "layers": found}))
    return tmp_path


def recipe(folder: Path, **changes: Any) -> Recipe:
    fields = {
        "stages": [{"rtn": {"scheme": "w4a16-g32"}}],
        "precision": {"sensitivity": "found.json", "bits_per_weight": 4.0},
        **changes,
    }
    (folder / "recipe.yaml").write_text(json.dumps(fields))  # JSON is YAML
    return Recipe.load(folder / "recipe.yaml")


def test_a_recipe_says_in_overrides_what_was_chosen_and_needs_the_file_no_more(measured: Path) -> None:
    made = recipe(measured)
    (stage,) = made.stages
    chosen = choose_widths(layers(1), 4.0)
    schemes = {name: Scheme.parse(f"w{bits}a16-g32") for name, bits in chosen.items() if bits != 4}
    assert stage.overrides == schemes  # type: ignore[attr-defined]
    assert len(schemes) > 1
    dumped = made.model_dump(mode="json")
    assert "precision" not in dumped
    (measured / "found.json").unlink()
    assert Recipe.load(dumped).model_dump(mode="json") == dumped
    assert [layer["name"] for layer in made.sensitivity["layers"]] == [layer.name for layer in layers(1)]
    assert not Recipe.load(dumped).sensitivity


def test_the_schema_knows_the_key() -> None:
    assert set(recipe_schema()["$defs"]["Precision"]["properties"]) == {"sensitivity", "bits_per_weight"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stages": [{"rtn": {"scheme": "w4a16-g64"}}]}, "measured with group_size 32 and rtn has 64"),
        ({"stages": [{"rtn": {"scheme": "w4a16-g32-asym"}}]}, "measured with symmetric True and rtn has False"),
        ({"stages": [{"rtn": {"overrides": {"*": "w8a16"}, "scheme": "w4a16-g32"}}]}, "leave 'overrides' out"),
        ({"stages": ["rtn", "gptq"]}, "exactly one stage that rounds, not 2"),
        ({"precision": {"sensitivity": "none.json", "bits_per_weight": 4.0}}, r"none\.json cannot be read"),
        ({"precision": {"sensitivity": "found.json", "bit_per_weight": 4.0}}, "did you mean 'bits_per_weight'"),
        ({"precision": {"sensitivity": "recipe.yaml", "bits_per_weight": 4.0}}, "is no sensitivity file"),
    ],
)
def test_what_cannot_be_meant_is_refused(measured: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe(measured, **changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["layers"][0].update(name=["a"]),
        lambda data: data["layers"][0].update(name=data["layers"][1]["name"]),
        lambda data: data["layers"][0].update(elements=0, shape=[0]),
        lambda data: data["layers"][0]["kl"].update({"4": float("nan")}),
        lambda data: data["layers"][0]["bits_per_weight"].update({"4": data["layers"][0]["bits_per_weight"]["2"]}),
        lambda data: data["layers"][0]["bits_per_weight"].update({"2": -1.0}),
        lambda data: [layer.update(kl={}, bits_per_weight={}) for layer in data["layers"]],
        lambda data: data["layers"][0].update(shape=[float("inf")]),
    ],
)
def test_a_file_of_numbers_that_nobody_measures_is_refused(measured: Path, change: Callable[[Any], object]) -> None:
    file = measured / "found.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    with pytest.raises(RecipeError, match="is no sensitivity file"):
        recipe(measured)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"layers": ' + "9" * 5000 + "}", "\xff"])
def test_a_file_that_is_no_json_is_refused(measured: Path, text: str) -> None:
    (measured / "found.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError, match="cannot be read"):
        recipe(measured)


@pytest.fixture
def small_model() -> nn.Module:
    """Linear layers with the names and shapes of ``measured``."""
    blocks = [nn.ModuleDict({"up": nn.Linear(32, layer.elements // 32, bias=False)}) for layer in layers(1)]
    return nn.ModuleDict({"layers": nn.ModuleList(blocks)})


def test_the_model_that_was_measured_gets_what_was_chosen(measured: Path, small_model: nn.Module) -> None:
    done = goldstick.apply(small_model, recipe(measured))
    chosen = choose_widths(layers(1), 4.0)
    assert {layer.name.removesuffix(".weight"): layer.scheme for layer in done.report.layers} == {
        name: Scheme.parse(f"w{bits}a16-g32").label for name, bits in chosen.items()
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model["layers"].append(nn.ModuleDict({"up": nn.Linear(32, 8)})), r"lacks layers\.5\.up"),
        (lambda model: model["layers"].__delitem__(4), r"layers\.4\.up is \d+×32 there and is missing here"),
        (lambda model: model["layers"][0].update({"up": nn.Linear(64, 32)}), r"layers\.0\.up .* and is 32×64 here"),
    ],
)
def test_a_file_of_another_model_is_refused(
    measured: Path, small_model: nn.Module, change: Callable[[Any], object], said: str
) -> None:
    change(small_model)
    with pytest.raises(RecipeError, match=said):
        goldstick.apply(small_model, recipe(measured))


def test_a_recipe_that_rounds_fewer_layers_than_were_measured_is_refused(
    measured: Path, small_model: nn.Module
) -> None:
    stages = [{"rtn": {"scheme": "w4a16-g32", "targets": {"exclude": ["layers.2.up"]}}}]
    with pytest.raises(RecipeError, match=r"budget was counted over layers\.2\.up .* does not round"):
        goldstick.apply(small_model, recipe(measured, stages=stages))
