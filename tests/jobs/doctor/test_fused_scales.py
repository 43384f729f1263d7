"""Doctor on NVFP4 checkpoints whose fused layers do not share the scale of their scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

import goldstick
from goldstick.jobs.doctor.examine import examine

pytestmark = pytest.mark.usefixtures("all_proofs_here")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nvfp4")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory / "float")
    goldstick.quantize(directory / "float", "rtn-nvfp4a16", output=directory / "out", proof="tensors")
    return directory / "out"


def test_layers_that_share_it_are_healthy(made: Path) -> None:
    found = examine(made)
    assert not [finding for finding in found.findings if finding.severity == "fault"], found.findings


def test_layers_that_do_not_share_it_are_named(made: Path) -> None:
    tensors = load_file(made / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight_global_scale"] *= 2
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    faults = [finding for finding in examine(made).findings if finding.check == "fused-scales"]
    assert len(faults) == 1 and faults[0].severity == "fault"
    assert faults[0].where[0].startswith("model.layers.0.self_attn.{q_proj,k_proj,v_proj}: global_scale ")
    assert len(faults[0].where) == 1


def test_a_layer_of_zeros_shares_it_too(made: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.parent / "float", dtype=torch.bfloat16)
    model.model.layers[0].self_attn.v_proj.weight.data.zero_()
    model.save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-nvfp4a16", output=tmp_path / "out", proof="tensors")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    shared = {float(tensors[f"model.layers.0.self_attn.{name}_proj.weight_global_scale"]) for name in "qkv"}
    assert len(shared) == 1 and shared != {0.5}, shared
    assert not [finding for finding in examine(tmp_path / "out").findings if finding.check == "fused-scales"]
    layer = goldstick.load(tmp_path / "out").model.layers[0].self_attn.v_proj
    assert not layer.weight.any()


def test_inputs_whose_scales_of_scales_differ_are_named(made: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.parent / "float", dtype=torch.bfloat16)
    ids = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(0))
    folder = goldstick.apply(model, "rtn-nvfp4", data=[ids]).save(tmp_path / "out")
    assert not [finding for finding in examine(folder).findings if finding.check == "fused-scales"]
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.input_global_scale"] *= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (fault,) = [finding for finding in examine(folder).findings if finding.check == "fused-scales"]
    assert fault.severity == "fault"
    (where,) = fault.where
    assert where.startswith("model.layers.0.mlp.{gate_proj,up_proj}: input_global_scale ")
