"""Pruning from a recipe to a proven checkpoint: whose config says the new widths, or tells what was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import goldstick
from goldstick.core.scatter import ScatteredBatchNorm
from goldstick.errors import FormatError, SourceError, StructureError
from goldstick.hf.pruned import PRUNED
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.verify import verify
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.training import TrainingTask
from tests.support.proofs import prove_here
from tests.support.pruning_recipe import pruning_recipe
from tests.support.tiny_models import FAMILIES, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny model of four heads with a tokenizer, and a text beside it."""
    folder = tmp_path_factory.mktemp("source")
    FAMILIES["llama_mha"]().to(torch.bfloat16).save_pretrained(folder / "model")
    write_tokenizer(folder / "model")
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "bird"]
    chosen = torch.randint(len(words), (800,), generator=torch.Generator().manual_seed(0)).tolist()
    (folder / "text.txt").write_text(" ".join(words[number] for number in chosen))
    return folder


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(**sample_inputs(model)).logits
    return found


def test_one_command_prunes_finetunes_and_rounds_into_a_checkpoint_that_only_goldstick_builds(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounding = {"gptq": {"scheme": "w4a16-g16"}}
    made = goldstick.quantize(source / "model", pruning_recipe(source, 0.25, rounding), output=tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out")
    assert loaded.get_submodule("model.layers.1.self_attn.o_proj").in_features == 48  # three heads of four
    assert made.report.proof["max_abs_difference"] == 0
    monkeypatch.setattr(verify, "prove", prove_here)  # without a fresh process
    assert verify_checkpoint(tmp_path / "out")["passed"]
    report = read_report(tmp_path / "out")
    assert not any("before scop cuts" in warning for warning in report.warnings)  # they are those behind it
    (pruning,) = report.pruning
    assert pruning["parameters"][1] < pruning["parameters"][0] and pruning["macs"][1] < pruning["macs"][0]
    assert all(seconds > 0 for seconds in pruning["seconds"])
    assert {layer["kept"] for layer in pruning["layers"] if layer["heads"]} == {3}
    records = {record.name: record for record in report.layers}
    assert records["model.layers.0.mlp.down_proj.weight"].shape == (64, 96)
    assert records["model.layers.0.mlp.down_proj.weight"].scheme == "w4a16-g16"
    assert [one["stage"] for one in report.training] == ["scop", "finetune"]
    assert "<svg" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8").partition("Scores")[2]
    for refusing in (AutoModelForCausalLM, LlamaForCausalLM):
        with pytest.raises(Exception, match=PRUNED):
            refusing.from_pretrained(tmp_path / "out")
    with pytest.raises(FormatError, match="only the native format"):
        goldstick.export(tmp_path / "out", "compressed-tensors", output=tmp_path / "other")


def test_where_the_config_can_say_the_widths_plain_transformers_reads_what_was_pruned(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goldstick.quantize(source / "model", pruning_recipe(source, 0.5), output=tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_attention_heads"], config["intermediate_size"]) == (2, 64)
    assert PRUNED not in config and "quantization_config" not in config
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert plain.dtype == torch.bfloat16
    assert torch.equal(logits(plain), logits(goldstick.load(tmp_path / "out")))


def test_blocks_that_lost_differently_are_stored_with_what_was_cut(tmp_path: Path) -> None:
    model = FAMILIES["llama_gqa"]()
    cutting = [
        {"scop": {"criterion": "random", "rate": 0.5, "targets": {"include": ["*layers.0.self_attn.v_proj"]}}},
        {"scop": {"criterion": "magnitude", "rate": 0.25, "targets": {"include": ["*layers.1.mlp.gate_proj"]}}},
    ]
    data = [{"input_ids": torch.randint(0, 128, (2, 8))}]
    result = goldstick.apply(model, {"stages": cutting}, data=data)
    assert result.model.get_submodule("model.layers.0.self_attn.k_proj").out_features == 16
    assert "Only goldstick.load reads" in result.report.warnings[0]
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(result.model))  # another kernel of attention
    again = goldstick.apply(loaded, {"stages": cutting[1:]}, data=data)  # cuts of cuts
    again.save(tmp_path / "again")
    torch.testing.assert_close(logits(goldstick.load(tmp_path / "again")), logits(again.model))
    with pytest.raises(FormatError, match="gptq cannot hold this: no config"):
        goldstick.apply(
            model, {"stages": [*cutting, {"rtn": {"scheme": "w4a16-g16"}}], "export": {"format": "gptq"}}, data=data
        )


def test_a_residual_network_of_transformers_keeps_its_zeros_in_the_place_of_what_was_cut(tmp_path: Path) -> None:
    model = FAMILIES["resnet"]()
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    task = TrainingTask(batches=[(images, torch.tensor([0, 1, 0, 1]))])
    stage = {"scop": {"criterion": "magnitude", "rate": 0.3}}
    result = goldstick.apply(model, {"stages": [stage, {"rtn": {"scheme": "w8a16"}}]}, training=task)
    assert any(isinstance(module, ScatteredBatchNorm) for module in result.model.modules())
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, result.model(images).logits)


def test_what_a_config_tells_of_cuts_is_not_trusted(source: Path, tmp_path: Path) -> None:
    goldstick.quantize(source / "model", pruning_recipe(source, 0.25, criterion="random"), output=tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    told = config[PRUNED]
    wrong: list[tuple[Any, type[Exception]]] = [
        ({**told, "cuts": None}, SourceError),
        ({**told, "hidden": {"model_type": PRUNED}}, SourceError),
        ({**told, "cuts": [{"slices": 3, "scattered": []}]}, StructureError),
        ({**told, "cuts": [*told["cuts"], *told["cuts"]]}, StructureError),
    ]
    for table, error in wrong:
        path.write_text(json.dumps({**config, PRUNED: table}))
        with pytest.raises(error):
            goldstick.load(tmp_path / "out")


def test_weights_of_16_bits_learn_in_32_and_are_stored_in_16(source: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(source / "model", dtype=torch.bfloat16)
    data = [{"input_ids": torch.randint(0, 128, (2, 8), generator=torch.Generator().manual_seed(0))}]
    slow = {"finetune": {"training": {"steps": 60, "rate": 2e-5, "schedule": "constant"}}}
    result = goldstick.apply(model, {"stages": [slow]}, data=data)
    before, after = (one.get_parameter("model.layers.0.mlp.up_proj.weight") for one in (model, result.model))
    assert after.dtype == torch.bfloat16
    large = before.abs() > 0.1  # a step is a twelfth of half a unit in their last place, or less, and 60 are five
    assert (after != before)[large].double().mean() > 0.3
