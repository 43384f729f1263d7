"""Sensitivity of models that read no text: of images, of sound, and of what gives no predictions."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn
from transformers import ViTModel

import goldstick
from goldstick.cli import main
from goldstick.errors import DataError
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.jobs.sensitivity.measures import Measure, measure_for
from goldstick.jobs.sensitivity.sensitivity import measure_sensitivity
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from goldstick.report.sensitivity import Sensitivity
from goldstick.report.sensitivity_page import render_sensitivity
from tests.support import tiny_processors
from tests.support.pages import check_alone

RECIPE = Recipe.load({"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})
SIDE = tiny_processors.SIDE


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vit")
    tiny_processors.vit(directory / "model")
    for number in range(4):
        tiny_processors.write_image(directory / "images" / f"{number}.png", number)
    return directory


def rounded(model: nn.Module, name: str, bits: int) -> Any:
    """A copy of which one layer computes with the numbers it is rounded to."""
    stage = {"rtn": {"scheme": f"w{bits}a16-g32", "targets": {"include": [name]}}}
    weight = goldstick.apply(copy.deepcopy(model), {"stages": [stage]}).model.get_submodule(name).weight
    tried = copy.deepcopy(model)
    tried.get_submodule(name).weight.data.copy_(weight)
    return tried


def test_a_classifier_is_measured_by_its_predictions_on_a_folder_of_images(vit: Path) -> None:
    data = Calibration(dataset=str(vit / "images"), samples=4)
    found = measure_sensitivity(vit / "model", RECIPE, (2, 4), data)
    assert (found.measure, found.tokens) == ("kl", 4)
    assert found.inputs == f"4 samples from {vit / 'images'}"
    from goldstick.jobs.load.calibration_inputs import calibration_inputs

    model: Any = goldstick.load(vit / "model")
    (batch,) = calibration_inputs(data, vit / "model", None)(model).batches()
    layer = next(layer for layer in found.layers if layer.name.endswith("1.mlp.fc1"))
    with torch.no_grad():
        p, q = (one(**batch).logits.double().softmax(-1) for one in (model, rounded(model, layer.name, 2)))
    assert layer.kl[2] == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-4)
    assert all(layer.kl[4] < layer.kl[2] for layer in found.layers)


def test_a_model_without_predictions_is_measured_by_the_error_of_all_its_outputs(vit: Path, tmp_path: Path) -> None:
    model: Any = ViTModel.from_pretrained(vit / "model").eval()
    model.save_pretrained(tmp_path / "encoder")
    inputs = {"pixel_values": torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))}
    found = measure_sensitivity(tmp_path / "encoder", RECIPE, (3,), Calibration(), inputs=inputs)
    assert (found.measure, found.tokens) == ("squared error", 3)
    layer = next(layer for layer in found.layers if layer.name.endswith("0.mlp.fc2"))
    with torch.no_grad():
        right, tried = (one(**inputs) for one in (model, rounded(model, layer.name, 3)))
    outputs = ("last_hidden_state", "pooler_output")
    errors = [float((right[name] - tried[name]).square().sum() / right[name].square().sum()) for name in outputs]
    assert layer.kl[3] == pytest.approx(sum(errors) / 2, rel=1e-4)
    again = Sensitivity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    page = check_alone(render_sensitivity(again))
    assert "Squared error of the outputs" in page.text and "nats" not in page.text


def test_runs_of_an_encoder_begin_at_the_block_that_changed(vit: Path) -> None:
    model: Any = ViTModel.from_pretrained(vit / "model").eval()
    measure = Measure(name="squared error")
    runs = BlockRuns(model, [{"pixel_values": torch.randn(2, 3, SIDE, SIDE)}], measure=measure)
    assert len(runs.blocks) == 2
    right = list(runs.answers())
    runs.start_at(1)
    assert measure.apart(right, runs.answers()) == 0
    with torch.no_grad():
        model.get_submodule(runs.blocks[0]).apply(lambda one: [p.mul_(2) for p in one.parameters(recurse=False)])
    assert measure.apart(right, runs.answers()) == 0  # it is passed over
    with torch.no_grad():
        model.get_submodule(runs.blocks[1]).apply(lambda one: [p.mul_(2) for p in one.parameters(recurse=False)])
    assert measure.apart(right, runs.answers()) > 0


def test_a_model_of_speech_takes_inputs_or_recordings_and_a_recipe_takes_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_processors.whisper(Path("whisper"))
    ids = torch.tensor([[1, 5, 6, 7]]).repeat(2, 1)
    save_file({"input_features": torch.randn(2, 16, 100), "decoder_input_ids": ids}, "inputs.safetensors")
    for number in range(4):
        tiny_processors.write_sound(Path("sounds") / f"{number}.wav", number)
    words = ["sensitivity", "whisper", "-r", "rtn-w4a16-g32", "--bits", "3,8", "-o", "found.json"]
    words += ["--overwrite", "--group-size-mismatch", "smaller"]
    for more, said in ((["--inputs", "inputs.safetensors"], "input_features [2, 16, 100]"),
                       (["--data", "sounds", "--samples", "4"], "4 samples from sounds")):  # fmt: skip
        made = CliRunner().invoke(main, [*words, *more])
        assert made.exit_code == 0, made.output
        found = Sensitivity.from_dict(json.loads(Path("found.json").read_text()))
        assert found.measure == "kl" and said in found.inputs
        # of a single first token the attention to itself is 1, whatever its scores
        assert all(layer.kl[8] < layer.kl[3] or layer.kl[3] == 0 for layer in found.layers)
    mixed = {"stages": [{"rtn": {"scheme": "w4a16-g32", "group_size_mismatch": "smaller"}}],
             "precision": {"sensitivity": "found.json", "bits_per_weight": 6.0}}  # fmt: skip
    report = goldstick.apply(model, mixed).report
    assert {layer.scheme[:3] for layer in report.layers if layer.scheme} == {"w3a", "w8a"}
    both = CliRunner().invoke(main, [*words, "--inputs", "inputs.safetensors", "--data", "sounds"])
    assert both.exit_code == 2 and "does not go with --dataset" in both.output
    Path("text.txt").write_text("a text " * 400)
    refused = CliRunner().invoke(main, [*words, "--data", "text.txt"])
    assert refused.exit_code == 1
    assert "text.txt is text, and the forward of WhisperForConditionalGeneration takes no input_ids" in refused.output


def test_inputs_that_a_model_does_not_run_on_are_named(vit: Path) -> None:
    model = goldstick.load(vit / "model")
    with pytest.raises(DataError, match=r"does not run on pixel_values \[1, 4, 4\] .* Give --inputs FILE"):
        measure_for(model, {"pixel_values": torch.zeros(1, 4, 4)})
