"""Mixtures in GPTQ, AWQ and auto-round files, as Qwen publishes them: a packed layer for each matrix of each expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick import api
from goldstick.errors import FormatError
from goldstick.formats import FORMATS
from goldstick.formats.input_scale import part_name
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from tests.support.commands import change_json
from tests.support.tiny_mixtures import MIXTURES

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

IDS = torch.arange(16)[None]


def logits(directory: Path) -> torch.Tensor:
    model: Any = goldstick.load(directory)
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def published(folder: Path, form: str, family: str, scheme: str) -> tuple[Path, Path]:
    """A mixture as goldstick stores it, and the same codes and scales in files of another tool."""
    recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": "native"}}
    own = folder / "own"
    goldstick.apply(MIXTURES[family]().half(), recipe).save(own)
    stored, packing = open_quantized(own).stored, FORMATS[form]
    parts = {part_name(layer.name, suffix) for layer in stored.layers for suffix in stored.parts(layer)}
    tensors = {name: value for name, value in load_file(own / "model.safetensors").items() if name not in parts}
    for layer in stored.layers:
        packed = packing.pack(stored.unpack(layer), layer.scheme)
        tensors |= {part_name(layer.name, suffix): part for suffix, part in packed.items()}
    there = folder / "there"
    there.mkdir()
    (there / "config.json").write_bytes((own / "config.json").read_bytes())
    save_file(tensors, there / "model.safetensors", {"format": "pt"})
    words = {
        "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        "auto-round": {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True,
                       "packing_format": "auto_round:auto_gptq"},
    }  # fmt: skip
    change_json(there / "config.json", lambda config: config.update(quantization_config=words[form]))
    return own, there


@pytest.mark.parametrize("form", ["gptq", "awq", "auto-round"])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_experts_are_read_as_what_their_codes_stand_for(form: str, family: str, tmp_path: Path) -> None:
    own, there = published(tmp_path, form, family, "w4a16-g32")
    assert torch.equal(logits(there), logits(own))
    assert any(layer.kind == "experts" for layer in open_quantized(there).stored.layers)
    assert examine(there).healthy
    ours, theirs = open_source(own).tensors, open_source(there).tensors
    assert all(torch.equal(theirs[name].read(), info.read()) for name, info in ours.items())


def test_so_are_those_with_zeros(tmp_path: Path) -> None:
    own, there = published(tmp_path, "awq", "qwen3_moe", "w4a16-g32-asym")
    assert torch.equal(logits(there), logits(own))


def test_scales_are_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    _, there = published(tmp_path, "gptq", "qwen3_moe", "w4a16-g32")
    change_json(there / "config.json", lambda config: config.update(dtype="bfloat16"))
    model: Any = goldstick.load(there)
    experts = {name: value.dtype for name, value in model.state_dict().items() if "experts" in name}
    held = [dtype for dtype in experts.values() if dtype.is_floating_point]
    assert held and {*held} == {torch.bfloat16}
    assert logits(there).dtype is torch.bfloat16


def test_an_order_of_their_own_is_read_to_be_quantized_again_and_not_run(tmp_path: Path) -> None:
    _, there = published(tmp_path, "gptq", "qwen3_moe", "w4a16-g32")
    file = there / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        shuffled = torch.randperm(len(tensors[name]), generator=torch.Generator().manual_seed(0))
        tensors[name] = tensors[name][shuffled]
    save_file(tensors, file, {"format": "pt"})
    change_json(there / "config.json", lambda config: config["quantization_config"].update(desc_act=True))
    with pytest.raises(FormatError, match=r"experts\.0.* is of an expert whose groups .* as a source it is read"):
        goldstick.load(there)
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}]}
    assert api.quantize(there, recipe, output=tmp_path / "again").directory.is_dir()
