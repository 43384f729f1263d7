"""Checkpoints whose config names another dtype than their files have, or whose weights have several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

import goldstick
from tests.support.crash_points import tiny_checkpoint, write_text

pytestmark = pytest.mark.usefixtures("proof_here")


def written(directory: Path, dtypes: dict[str, torch.dtype], named: str) -> Path:
    """A checkpoint: the dtype of the tensors that have a part of a name, the rest by the part that is empty; what its
    config says."""
    tiny_checkpoint(directory, 1)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        tensors[name] = tensor.to(next(dtype for part, dtype in dtypes.items() if part in name))
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config.pop("torch_dtype", None)
    (directory / "config.json").write_text(json.dumps(config | {"dtype": named}))
    return directory


@pytest.mark.parametrize("recipe", ["rtn-w4a16-g32", "gptq-w4a16-g32"])
@pytest.mark.parametrize(
    ("dtypes", "named"),
    [
        ({"": torch.bfloat16}, "float32"),
        ({"": torch.float32}, "bfloat16"),
        ({"": torch.float16}, "bfloat16"),
        ({"down_proj": torch.float32, "": torch.bfloat16}, "bfloat16"),
    ],
    ids=["bfloat16 as float32", "float32 as bfloat16", "float16 as bfloat16", "one layer in float32"],
)
def test_weights_are_rounded_as_the_model_has_them(
    dtypes: dict[str, torch.dtype], named: str, recipe: str, tmp_path: Path
) -> None:
    source = written(tmp_path / "model", dtypes, named)
    settings = goldstick.Recipe.load(recipe).model_dump(mode="json")
    if recipe.startswith("gptq"):
        text = str(write_text(tmp_path / "text.txt"))
        settings["calibration"] = {"dataset": text, "samples": 4, "seq_len": 64}
    made = goldstick.quantize(source, settings, output=tmp_path / "made")
    assert made.report.proof["passed"] and made.report.proof["max_abs_difference"] == 0
    model = goldstick.load(tmp_path / "made")
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, named)}
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "made" / "model.safetensors")
    for name in before.keys() & after.keys():  # what stays float is copied
        assert torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype


@pytest.mark.parametrize("stored", [torch.float32, torch.float16], ids=str)
def test_layers_that_transformers_keeps_in_float32_are_rounded_there(stored: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(**sizes)).to(stored).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    made = goldstick.quantize(tmp_path / "model", "rtn-w4a16-g32", output=tmp_path / "made")
    assert made.report.proof["passed"]
    dtypes = {name: tensor.dtype for name, tensor in load_file(tmp_path / "made" / "model.safetensors").items()}
    assert dtypes["encoder.block.0.layer.1.DenseReluDense.wo.weight_scale"] == torch.float32
    assert dtypes["encoder.block.0.layer.1.DenseReluDense.wi.weight_scale"] == torch.float16
