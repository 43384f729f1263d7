"""Sensitivity against a slow loop that rounds a copy of the whole model, runs it, and sums in Python."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import goldstick
from goldstick.cli import main
from goldstick.errors import RecipeError, UsageError
from goldstick.jobs.sensitivity import sensitivity as module
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.jobs.sensitivity.sensitivity import measure_sensitivity
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from goldstick.report.sensitivity import Sensitivity
from goldstick.report.sensitivity_page import render_sensitivity
from tests.support.pages import check_alone
from tests.support.tiny_models import FAMILIES

RECIPE = Recipe.load({"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})


@pytest.fixture(scope="module")
def text(source_with_text: Path) -> Calibration:
    return Calibration(dataset=str(source_with_text / "text.txt"), samples=4, seq_len=24)


@pytest.fixture(scope="module")
def found(source_with_text: Path, text: Calibration) -> Sensitivity:
    return measure_sensitivity(source_with_text, RECIPE, (3, 8), text)


def slow_kl(first: Tensor, second: Tensor) -> float:
    values = []
    for p, q in zip(first.flatten(0, -2).double(), second.flatten(0, -2).double(), strict=True):
        log_p, log_q = p - p.logsumexp(-1), q - q.logsumexp(-1)
        values.append(float((log_p.exp() * (log_p - log_q)).sum()))
    return math.fsum(values) / len(values)


def test_every_layer_alone_costs_what_a_rounded_copy_of_the_model_costs(
    source_with_text: Path, text: Calibration, found: Sensitivity
) -> None:
    from goldstick.jobs.load.calibration_data import calibration_data

    model: Any = goldstick.load(source_with_text)
    ids = calibration_data(text, source_with_text, None)(model).ids
    with torch.no_grad():
        right = model(input_ids=ids).logits
    names = [layer.name for layer in found.layers]
    assert names == [
        name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and name != "lm_head"
    ]
    for layer in [found.layers[0], found.layers[5], found.layers[-1]]:
        for bits in (3, 8):
            made = goldstick.apply(
                copy.deepcopy(model),
                {"stages": [{"rtn": {"scheme": f"w{bits}a16-g32", "targets": {"include": [layer.name]}}}]},
            )
            weight = made.model.get_submodule(layer.name).weight
            tried: Any = copy.deepcopy(model)
            tried.get_submodule(layer.name).weight.data.copy_(weight)
            with torch.no_grad():
                logits = tried(input_ids=ids).logits
            assert layer.kl[bits] == pytest.approx(slow_kl(right, logits), rel=1e-4, abs=1e-12)
            assert layer.bits_per_weight[bits] == bits + 1  # a float32 scale for 32 weights


def test_more_bits_change_less_and_the_model_is_left_as_it_was(found: Sensitivity) -> None:
    assert all(layer.kl[8] < layer.kl[3] / 50 for layer in found.layers)
    assert found.tokens == 96


@pytest.mark.parametrize("family", ["llama_gqa", "gemma2", "gpt2", "bloom", "mixtral"])
def test_passing_over_blocks_gives_the_logits_of_whole_runs(family: str) -> None:
    model: Any = FAMILIES[family]().eval()
    ids = torch.randint(0, 64, (2, 9))
    runs = BlockRuns(model, [{"input_ids": ids}])
    assert len(runs.blocks) == 2
    (whole,) = runs.logits()
    first, last = (model.get_submodule(block) for block in runs.blocks)
    runs.start_at(1)
    (again,) = runs.logits()
    assert torch.equal(again, whole)
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(1.5)
        (changed,) = runs.logits()
        assert torch.equal(changed, model(input_ids=ids, use_cache=False).logits)
        for parameter in first.parameters():  # has no effect: it is passed over
            parameter.mul_(1.5)
        assert torch.equal(next(runs.logits()), changed)
        assert not torch.equal(model(input_ids=ids, use_cache=False).logits, changed)
    assert not torch.equal(changed, whole)


class Handing(nn.Module):
    """Blocks of which the last reads what the first has left: in a table of its call, or on the model."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor, left: dict[str, Tensor], leaves: bool, reads: bool) -> Tensor:
            y: Tensor = self.layer(x)
            if leaves:
                left["first"] = y
            return x + (y * left["first"] if reads else y)

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.layers, self.left = nn.ModuleList(self.Block() for _ in range(3)), {} if keeps else None

    def forward(self, x: Tensor) -> Any:
        left = {} if self.left is None else self.left
        for place, layer in enumerate(self.layers):
            x = layer(x, left, place == 0, place == 2)
        return SimpleNamespace(logits=x)


@pytest.mark.parametrize("keeps", [True, False])
def test_blocks_that_read_what_one_before_has_left_are_run_whole(keeps: bool) -> None:
    runs = BlockRuns(Handing(keeps).eval(), [{"x": torch.randn(2, 8)}, {"x": torch.randn(2, 8)}])
    assert runs.blocks == ()


def test_the_same_bits_come_from_any_number_of_threads(
    source_with_text: Path, text: Calibration, found: Sensitivity
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert measure_sensitivity(source_with_text, RECIPE, (3, 8), text) == found
    finally:
        torch.set_num_threads(threads)


def test_the_file_can_be_read_and_a_recipe_takes_it_in(
    found: Sensitivity, tmp_path: Path, source_with_text: Path
) -> None:
    data = json.loads(json.dumps(found.to_dict()))
    assert Sensitivity.from_dict(data) == found
    (tmp_path / "found.json").write_text(json.dumps(data))
    mixed = Recipe.load(
        {
            "stages": [{"rtn": {"scheme": "w4a16-g32"}}],
            "precision": {"sensitivity": str(tmp_path / "found.json"), "bits_per_weight": 6.0},
        }
    )
    result = goldstick.apply(goldstick.load(source_with_text), mixed)
    assert result.report.size.bits_per_weight is not None
    assert 4.5 < result.report.size.bits_per_weight <= 6.0
    assert Sensitivity.from_dict(result.report.sensitivity) == found  # for the report's heat map


SCHEMES = ("nvfp4", "fp8a16", "q8_0", "q4_k_m")


def test_schemes_by_name_cost_what_rounding_the_layer_to_them_costs(source_with_text: Path, text: Calibration) -> None:
    from goldstick.jobs.load.calibration_data import calibration_data

    found = measure_sensitivity(source_with_text, RECIPE, (*SCHEMES, 4), text)
    assert found.widths == (4, *SCHEMES)
    model: Any = goldstick.load(source_with_text)
    ids = calibration_data(text, source_with_text, None)(model).ids
    layer = found.layers[3]
    searches = {"q8_0": "ggml", "q4_k_m": "ggml"}
    for name in SCHEMES:
        rtn = {"scheme": name, "range_search": searches.get(name, "minmax"), "targets": {"include": [layer.name]}}
        if name == "nvfp4":
            rtn["scheme"] = "nvfp4a16"  # weights alone are rounded
        made = goldstick.apply(copy.deepcopy(model), {"stages": [{"rtn": rtn}]})
        tried: Any = copy.deepcopy(model)
        tried.get_submodule(layer.name).weight.data.copy_(made.model.get_submodule(layer.name).weight)
        with torch.no_grad():
            wanted = slow_kl(model(input_ids=ids).logits, tried(input_ids=ids).logits)
        assert layer.kl[name] == pytest.approx(wanted, rel=1e-4, abs=1e-12)
    assert {name: layer.bits_per_weight[name] for name in ("fp8a16", "q8_0")} == {"fp8a16": 8.5, "q8_0": 8.5}
    assert layer.bits_per_weight["nvfp4"] == pytest.approx(4.5 + 32 / layer.elements)
    assert Sensitivity.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    page = check_alone(render_sensitivity(found))
    assert "fp8a16" in page.text and "4 bits" in page.text


def test_a_budget_is_spent_on_schemes_by_name(source_with_text: Path, text: Calibration, tmp_path: Path) -> None:
    found = measure_sensitivity(source_with_text, RECIPE, ("fp8a16", "nvfp4a16"), text)
    (tmp_path / "found.json").write_text(json.dumps(found.to_dict()))
    stages = [{"rtn": {"scheme": "nvfp4a16"}}]
    mixed = Recipe.load(
        {"stages": stages, "precision": {"sensitivity": str(tmp_path / "found.json"), "bits_per_weight": 6.5}}
    )
    result = goldstick.apply(goldstick.load(source_with_text), mixed)
    schemes = {layer.scheme for layer in result.report.layers if layer.scheme}
    assert schemes == {"fp8a16", "nvfp4a16"}
    assert result.report.size.bits_per_weight is not None and result.report.size.bits_per_weight <= 6.5


def test_a_recipe_of_another_scheme_is_tried_as_it_is(source_with_text: Path, tmp_path: Path) -> None:
    arguments = ["sensitivity", str(source_with_text), "--dataset", str(source_with_text / "text.txt")]
    arguments += ["--samples", "2", "--seq-len", "16", "--json"]
    made = CliRunner().invoke(main, [*arguments, "-r", "rtn-mxfp4a16"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["widths"] == ["mxfp4a16"]
    refused = CliRunner().invoke(main, [*arguments, "-r", "rtn-mxfp4a16", "--bits", "4"])
    assert refused.exit_code == 2 and "--schemes fp8a16,nvfp4a16,q4_k" in refused.output
    refused = CliRunner().invoke(main, [*arguments, "--schemes", "fp9"])
    assert refused.exit_code == 2 and "No scheme is called 'fp9'" in refused.output


def test_the_page_has_a_cell_for_each_layer_and_width(found: Sensitivity) -> None:
    html = render_sensitivity(found)
    page = check_alone(html)
    assert html.count('class="cell"') == 2 * len(found.layers)
    assert "model.layers.*.mlp.up_proj" in page.text
    assert "groups of 32, symmetric, ranges by minmax" in page.text


@pytest.mark.parametrize(
    ("recipe", "widths", "error", "said"),
    [
        (RECIPE, (0, 4), UsageError, "1 to 8 bits, not 0, 4"),
        (RECIPE, (), UsageError, "not none"),
        (Recipe.load({"stages": ["kv_cache"]}), (4,), RecipeError, "rounds no layer"),
        (Recipe.load({"stages": ["rotate", {"rtn": {"scheme": "w4a16-g32"}}]}), (4,), RecipeError, "rotates"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_read(
    recipe: Recipe, widths: tuple[int, ...], error: type[Exception], said: str, text: Calibration,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "load_float", None)
    with pytest.raises(error, match=said):
        measure_sensitivity(Path("nowhere"), recipe, widths, text)


def test_the_command_writes_what_recipes_read_and_a_page(
    source_with_text: Path, tmp_path: Path, found: Sensitivity
) -> None:
    (tmp_path / "recipe.yaml").write_text("stages: [{rtn: {scheme: w4a16-g32}}]")
    arguments = ["sensitivity", str(source_with_text), "-r", str(tmp_path / "recipe.yaml"), "--bits", "3,8"]
    arguments += ["--dataset", str(source_with_text / "text.txt"), "--samples", "4", "--seq-len", "24"]
    made = CliRunner().invoke(
        main, [*arguments, "-o", str(tmp_path / "found.json"), "--html", str(tmp_path / "page.html")]
    )
    assert made.exit_code == 0, made.output
    assert "model.layers.1.mlp.down_proj" in made.stdout
    assert Sensitivity.from_dict(json.loads((tmp_path / "found.json").read_text())).layers == found.layers
    check_alone((tmp_path / "page.html").read_text())
    refused = CliRunner().invoke(main, [*arguments, "--bits", "two"])
    assert refused.exit_code == 2
    assert "no list of bits" in refused.output
