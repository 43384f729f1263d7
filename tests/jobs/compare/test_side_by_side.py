"""Two checkpoints run side by side: equal ones never part, a changed layer is found, and the figures are right."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import goldstick
from goldstick.errors import CheckpointError, UsageError
from goldstick.hf.example_inputs import fixed_inputs
from goldstick.jobs.compare import lockstep
from goldstick.jobs.compare.side_by_side import compare_models
from goldstick.recipes.calibration import Calibration
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    FAMILIES["llama_gqa"]().save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def changed(source: Path, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a checkpoint with changed tensors."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def outputs_of(directory: Path) -> dict[str, Tensor]:
    """The first output of every module on the fixed inputs, held all at once."""
    model: Any = goldstick.load(directory)
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            outputs[name] = output if isinstance(output, Tensor) else output[0]

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(keep(name))
    with torch.no_grad():
        model(**fixed_inputs(model))
    return outputs


def test_equal_models_have_infinite_sqnr_everywhere_and_never_part(source: Path) -> None:
    found = compare_models(source, source)
    names = [module.name for module in found.modules]
    assert set(names) == set(outputs_of(source))
    assert all(module.sqnr_db == math.inf and module.cosine == 1 and module.max_abs == 0 for module in found.modules)
    assert found.parting is None
    assert (found.only_first, found.only_second, found.not_compared) == ((), (), ())
    assert (
        names.index("model.layers.0.self_attn.q_proj") < names.index("model.layers.0") < names.index("model.layers.1")
    )
    assert names[-1] == ""


def test_models_part_exactly_at_the_layer_that_was_changed(source: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj"

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{name}.weight"].mul_(-1)

    found = compare_models(source, changed(source, tmp_path / "other", change))
    assert found.parting is not None and found.parting.name == name
    differing = [module.name for module in found.modules if module.sqnr_db < math.inf]
    assert differing[0] == name
    assert "model.layers.1.mlp.gate_proj" not in differing
    (module,) = [module for module in found.modules if module.name == name]
    assert module.sqnr_db == pytest.approx(-10 * math.log10(4))  # the difference is twice the signal
    assert module.cosine == pytest.approx(-1)


def test_the_figures_of_a_quantized_checkpoint_are_those_of_outputs_held_at_once(
    source: Path, tmp_path: Path, proof_here: None
) -> None:
    made = goldstick.quantize(source, "rtn-w4a16-g32", output=tmp_path / "out").directory
    found = compare_models(source, made)
    first, second = outputs_of(source), outputs_of(made)
    assert {module.name for module in found.modules} == set(first) & set(second)
    for module in found.modules:
        a, b = first[module.name].double().flatten(), second[module.name].double().flatten()
        noise = float((a - b).square().sum())
        expected = math.inf if noise == 0 else 10 * math.log10(float(a.square().sum()) / noise)
        assert module.sqnr_db == pytest.approx(expected), module.name
        assert module.max_abs == float((a - b).abs().max())
        assert module.cosine == pytest.approx(float(a @ b / (a.norm() * b.norm())))
    kinds = {module.name: (module.first_kind, module.second_kind) for module in found.modules}
    assert kinds["model.layers.0.mlp.up_proj"] == ("Linear", "QuantizedLinear")
    assert 0 < len([module for module in found.modules if module.sqnr_db < math.inf]) < len(found.modules)


def test_outputs_are_let_go_as_soon_as_both_models_gave_them(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real = lockstep.run_in_steps

    def noted(streamed: Any, run: Any) -> Any:
        for step in real(streamed, run):
            steps.append(step.name)
            yield step

    monkeypatch.setattr("goldstick.jobs.compare.side_by_side.run_in_steps", noted)
    compare_models(source, source)
    assert steps[::2] == steps[1::2]  # in turn, module by module


def test_text_is_read_through_the_first_models_tokenizer(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The harbour lies on the north side of the island. " * 4)
    found = compare_models(source, source, text=Calibration(dataset=str(file), samples=3, seq_len=16))
    assert found.inputs == f"3 samples of 16 tokens from {file}"
    assert found.modules[-1].shape == (3, 16, 128)


def test_models_of_different_shapes_are_compared_as_far_as_their_names_and_shapes_go(
    source: Path, tmp_path: Path
) -> None:
    config = FAMILIES["llama_gqa"]().config
    config.num_hidden_layers, config.intermediate_size = 1, 96
    type(FAMILIES["llama_gqa"]())(config).save_pretrained(tmp_path / "small")
    found = compare_models(source, tmp_path / "small")
    assert "model.layers.1.mlp.up_proj" in found.only_first
    assert "model.layers.0.self_attn.q_proj" in {module.name for module in found.modules}
    problems = dict(found.not_compared)
    assert problems["model.layers.0.mlp.up_proj"] == "its outputs have the shapes [4, 16, 128] and [4, 16, 96]"
    assert found.only_second == ()
    assert found.parting is not None and found.parting.name == "model.embed_tokens"


def test_a_model_that_cannot_read_the_ids_is_refused(source: Path, tmp_path: Path) -> None:
    config = FAMILIES["llama_gqa"]().config
    config.vocab_size = 16
    type(FAMILIES["llama_gqa"]())(config).save_pretrained(tmp_path / "other")
    with pytest.raises(UsageError, match="embeddings for 16 token ids"):
        compare_models(source, tmp_path / "other")


@pytest.mark.parametrize("family", ["resnet", "t5"])
def test_a_model_that_takes_other_inputs_is_refused(family: str, source: Path, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    for pair in ((source, tmp_path), (tmp_path, source)):
        with pytest.raises(UsageError, match=r"do not take the same inputs: .*input_ids.*models of one kind"):
            compare_models(*pair)


@pytest.mark.parametrize("family", ["mixtral", "resnet", "t5"])
def test_other_families_run_side_by_side(family: str, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    found = compare_models(tmp_path, tmp_path)
    assert len(found.modules) > 10
    assert found.parting is None
    assert all(module.sqnr_db == math.inf for module in found.modules)


def test_every_module_of_a_quantized_mixture_is_accounted_for(tmp_path: Path, proof_here: None) -> None:
    FAMILIES["mixtral"]().save_pretrained(tmp_path / "float")
    made = goldstick.quantize(tmp_path / "float", "rtn-w8a16", output=tmp_path / "out").directory
    found = compare_models(tmp_path / "float", made)
    compared = {module.name: module for module in found.modules}
    told = {*compared, *found.only_first, *dict(found.not_compared)}
    assert set(outputs_of(tmp_path / "float")) <= told
    assert 20 < compared["model.layers.0.mlp.experts"].sqnr_db < math.inf
    assert not set(found.only_second) & {*compared, *found.only_first}


def test_a_value_that_is_no_number_parts_the_models(source: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = math.nan

    found = compare_models(source, changed(source, tmp_path / "other", change))
    assert found.parting is not None and found.parting.name == "model.layers.0.mlp.down_proj"
    assert math.isnan(found.parting.sqnr_db) and math.isnan(found.parting.max_abs)


def test_a_damaged_checkpoint_is_said(source: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]

    with pytest.raises(CheckpointError, match="up_proj"):
        compare_models(source, changed(source, tmp_path / "other", change))


def test_the_command_prints_a_tree_writes_a_page_and_gives_json(source: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from goldstick.cli import main

    page = tmp_path / "page.html"
    shown = CliRunner().invoke(main, ["compare", str(source), str(source), "--depth", "1", "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "the models never part: no module falls below 10 dB" in shown.stdout
    assert "q_proj" not in shown.stdout
    assert 'data-path="model.layers.1.self_attn.q_proj"' in page.read_text()
    machine = CliRunner().invoke(main, ["compare", str(source), str(source), "--json"])
    assert json.loads(machine.stdout)["parting"] is None


def test_of_a_rotated_model_the_output_alone_is_judged(source: Path, tmp_path: Path, proof_here: None) -> None:
    for name, stages in (("turned", [{"rotate": {}}]), ("online", [{"rotate": {"online": True}}])):
        recipe = {"stages": [*stages, {"rtn": {"scheme": "w8a16"}}]}
        goldstick.quantize(source, recipe, output=tmp_path / name)
        found = compare_models(source, tmp_path / name)
        assert found.rotated
        assert any(module.sqnr_db < found.threshold for module in found.modules)
        assert found.verdict == "pass" and found.below == 0
        assert "one was rotated" in found.parting_words()
    again = compare_models(tmp_path / "turned", tmp_path / "turned")
    assert not again.rotated and again.verdict == "pass"
    worse = changed(tmp_path / "turned", tmp_path / "worse", lambda tensors: tensors["lm_head.weight"].neg_())
    broken = compare_models(source, worse)
    assert broken.rotated and broken.verdict == "fail"
    assert broken.parting is not None and not broken.parting.name
