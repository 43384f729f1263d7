"""NVFP4 in GGUF files: blocks, and the numbers beside them, where llama.cpp multiplies with these."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.algorithms.ggml.rounding import quantize_as_ggml
from goldstick.checkpoint.gguf.architectures import ARCHITECTURES
from goldstick.checkpoint.gguf.tensors import gguf_tensors
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import FormatError
from goldstick.formats.gguf import FACTOR, GGUF_NAME
from goldstick.formats.gguf_blocks import NVFP4, pack_blocks, unpack_blocks
from tests.support.gguf_models import GGUF_MODELS
from tests.support.tiny_models import GROUPED

pytestmark = pytest.mark.usefixtures("all_proofs_here")

IDS = torch.arange(2, 30).unsqueeze(0)
#: Whose graphs in llama.cpp multiply with the number beside every matrix of a block (its src/models, *_s).
MULTIPLIED = {"LlamaForCausalLM", "MixtralForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}


def recipe(**export: Any) -> dict[str, Any]:
    stage = {"scheme": "nvfp4a16", "range_search": "mse"}
    return {"stages": [{"rtn": stage}], "export": {"format": "gguf", **export}}


def test_blocks_stand_for_the_numbers_that_the_gguf_package_reads() -> None:
    codes = torch.randint(0, 16, (3, 128), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    scale = (torch.arange(1, 25, dtype=torch.uint8) * 5).reshape(3, 8).view(torch.float8_e4m3fn).float()
    tensor = QuantizedTensor(codes=codes, scale=scale, zero=None, grid=NVFP4.grid, global_scale=torch.ones(1, 1))
    blocks = pack_blocks(tensor, NVFP4)
    assert blocks.shape == (3, 2 * 36)
    theirs = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType.NVFP4)
    assert np.array_equal(theirs, tensor.dequantize().float().numpy())
    again = unpack_blocks(blocks, NVFP4)
    assert torch.equal(again.codes, codes) and torch.equal(again.scale, scale)
    for wrong in (0x7F, 0x81):
        with pytest.raises(FormatError, match="negative or no numbers"):
            unpack_blocks(torch.full((1, 36), wrong, dtype=torch.uint8), NVFP4)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_file_runs_as_the_native_checkpoint_does_and_goes_back(name: str, tmp_path: Path) -> None:
    GGUF_MODELS[name]().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    done = goldstick.quantize(tmp_path / "model", recipe(), output=tmp_path / "gguf")
    assert done.report.proof["passed"] is True
    goldstick.quantize(tmp_path / "model", recipe(format="native"), output=tmp_path / "native", proof="tensors")
    mine, native = goldstick.load(tmp_path / "gguf"), goldstick.load(tmp_path / "native")
    assert torch.equal(mine(input_ids=IDS).logits, native(input_ids=IDS).logits)
    goldstick.export(tmp_path / "gguf", "native", output=tmp_path / "back", proof="tensors")
    back, held = (load_file(tmp_path / kind / "model.safetensors") for kind in ("back", "native"))
    assert back.keys() == held.keys()
    assert all(torch.equal(back[key], held[key]) for key in held)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "gguf" / GGUF_NAME).tensors}
    blocks = [tensor for tensor in tensors.values() if tensor.tensor_type.name == "NVFP4"]
    for tensor in blocks:
        beside = tensors[tensor.name.replace(".weight", ".scale")]
        assert beside.tensor_type.name == "F32"
        assert beside.shape.tolist() == [4 if "exps" in tensor.name else 1]  # a number for each expert
    assert len(blocks) == 2 * 7


def test_matrices_whose_number_llama_cpp_drops_are_refused_by_name(tmp_path: Path) -> None:
    multiplied = {name for one in ARCHITECTURES if one.multiplies for name in one.classes}
    assert multiplied == MULTIPLIED | {"MistralForCausalLM"}
    GGUF_MODELS["qwen2"]().save_pretrained(tmp_path / "qwen2")
    with pytest.raises(FormatError, match=r"drops the scale of scales of model\.layers\.0\.\S+: its graph.*'qwen2'"):
        api.plan(tmp_path / "qwen2", recipe())
    LlamaForCausalLM(LlamaConfig(**GROUPED, mlp_bias=True)).save_pretrained(tmp_path / "biased")
    with pytest.raises(FormatError, match=r"product of model\.layers\.0\.mlp\.\S+ .* after it has added the bias"):
        api.plan(tmp_path / "biased", recipe())
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "llama")
    whole = recipe() | {"stages": [{"rtn": {"scheme": "nvfp4a16", "targets": {"include": ["@embedding"]}}}]}
    with pytest.raises(FormatError, match="not rows of an embedding"):
        api.plan(tmp_path / "llama", whole)


def test_a_number_that_is_wrong_is_refused(tmp_path: Path) -> None:
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "model")
    goldstick.quantize(tmp_path / "model", recipe(), output=tmp_path / "gguf", proof="tensors")
    info = gguf_tensors(tmp_path / "gguf" / GGUF_NAME)["model.layers.1.mlp.up_proj.weight" + FACTOR]
    shutil.copytree(tmp_path / "gguf", tmp_path / "bad")
    with (tmp_path / "bad" / GGUF_NAME).open("r+b") as file:
        file.seek(info.start)
        file.write(np.float32(-1).tobytes())
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj.* its NVFP4 scale is -1"):
        goldstick.load(tmp_path / "bad")


def test_the_search_of_ggml_writes_its_blocks_and_a_scale_of_one(tmp_path: Path) -> None:
    model = GGUF_MODELS["llama"]()
    projection = model.get_submodule("model.layers.0.mlp.up_proj")
    with torch.no_grad():
        projection.weight[0, :16] = 1e-5  # a scale of 0
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    stage = {"scheme": "nvfp4a16", "range_search": "ggml"}
    made = {"stages": [{"rtn": stage}], "export": {"format": "gguf"}}
    goldstick.quantize(tmp_path / "model", made, output=tmp_path / "gguf", proof="tensors")
    tensors = {each.name: each.data for each in gguf.GGUFReader(tmp_path / "gguf" / GGUF_NAME).tensors}
    expected = pack_blocks(quantize_as_ggml(projection.weight.detach().float(), NVFP4.grid), NVFP4).numpy()
    assert np.array_equal(tensors["blk.0.ffn_up.weight"], expected)
    assert tensors["blk.0.ffn_up.scale"].tolist() == [1.0]
    assert goldstick.load(tmp_path / "gguf")(IDS).logits.isfinite().all()
