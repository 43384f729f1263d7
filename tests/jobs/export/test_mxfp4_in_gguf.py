"""MXFP4 in GGUF files: experts as GPT-OSS is published come and go byte for byte, and every layer may be of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import goldstick
from goldstick.checkpoint.gguf.file import read_gguf
from goldstick.checkpoint.gguf.tensors import gguf_tensors
from goldstick.formats.gguf_blocks import BY_SUFFIX, unpack_blocks
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from tests.support.gguf_models import GGUF_MODELS

EXPERTS = {"scheme": "mxfp4a16", "targets": {"include": ["*experts*"]}}
IDS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-OSS with experts in MXFP4."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    model = GGUF_MODELS["gpt_oss"]().to(torch.bfloat16)
    goldstick.apply(model, {"stages": [{"rtn": EXPERTS}], "export": {"format": "mxfp4"}}).save(folder / "mxfp4")
    return folder / "mxfp4"


def test_experts_go_into_a_file_and_back_without_a_byte_changed(
    published: Path, tmp_path: Path, all_proofs_here: None
) -> None:
    goldstick.export(published, "gguf", output=tmp_path / "gguf", proof="tensors")
    types = {name: one.type for name, one in read_gguf(tmp_path / "gguf" / "model.gguf").tensors.items()}
    assert {kind for name, kind in types.items() if name.endswith("exps.weight")} == {"MXFP4"}
    assert examine(tmp_path / "gguf").findings == ()
    with torch.no_grad():
        found, expected = (goldstick.load(where)(IDS).logits for where in (tmp_path / "gguf", published))
    assert torch.equal(found, expected)
    goldstick.export(tmp_path / "gguf", "mxfp4", output=tmp_path / "back", proof="tensors")
    first, again = (load_file(where / "model.safetensors") for where in (published, tmp_path / "back"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_recipe_rounds_the_rest_and_leaves_the_numbers_of_the_experts_as_they_are(
    published: Path, tmp_path: Path, all_proofs_here: None
) -> None:
    rest = {"scheme": "w8a16-g32", "targets": {"exclude": ["*experts*"]}}
    stages = [{"rtn": rest}, {"rtn": EXPERTS}]
    goldstick.quantize(published, {"stages": stages, "export": {"format": "gguf"}}, output=tmp_path / "out")
    types = {one.type for one in read_gguf(tmp_path / "out" / "model.gguf").tensors.values()}
    assert types == {"MXFP4", "Q8_0", "BF16", "F32"}
    goldstick.export(published, "gguf", output=tmp_path / "kept", proof="tensors")
    mixed, kept = (gguf_tensors(tmp_path / name / "model.gguf") for name in ("out", "kept"))
    names = [name for name in kept if name.endswith("_mxfp4")]
    for name in names:
        one, two = (unpack_blocks(found[name].read(), BY_SUFFIX["_mxfp4"]) for found in (mixed, kept))
        assert torch.equal(one.dequantize(), two.dequantize())  # bytes may differ in the signs of zeros
    assert len(names) == 4


def test_every_linear_layer_may_be_of_it(tmp_path: Path, all_proofs_here: None) -> None:
    GGUF_MODELS["qwen2"]().to(torch.bfloat16).save_pretrained(tmp_path / "float")
    recipe = {"stages": [{"rtn": {"scheme": "mxfp4a16", "range_search": "ggml"}}], "export": {"format": "gguf"}}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "out")
    file = read_gguf(tmp_path / "out" / "model.gguf")
    assert file.metadata["general.file_type"] == 38
    assert open_source(tmp_path / "out").quantized_as == "gguf (mxfp4a16)"
