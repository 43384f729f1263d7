"""A streamed model computes what the whole one computes, with one block in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.checkpoint.safetensors_file import SafetensorsWriter
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import CheckpointError
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.load.load import load, load_float
from goldstick.structure.blocks import block_of
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs


def run_by_blocks(streamed: StreamedModel) -> Tensor:
    """The model's output, each block loaded by a hook before it runs and released after."""
    for block in streamed.blocks:
        module = streamed.model.get_submodule(block)
        module.register_forward_pre_hook(lambda _, args, block=block: streamed.load(block))
        module.register_forward_hook(lambda _, args, output, block=block: streamed.release(block))
    return whole(streamed.model)


def whole(model: Any) -> Tensor:
    return output_tensor(model, sample_inputs(model))


@pytest.fixture(params=["llama_gqa", "gpt_neox", "mixtral", "t5", "resnet"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    FAMILIES[request.param]().save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_a_float_model_gives_the_same_bits_and_can_be_run_again(source: Path) -> None:
    streamed = StreamedModel(source)
    expected = whole(load_float(source))
    assert torch.equal(run_by_blocks(streamed), expected)
    assert torch.equal(run_by_blocks(streamed), expected)


def test_what_lies_outside_the_blocks_is_read_again_as_it_was(source: Path) -> None:
    streamed = StreamedModel(source)
    expected = whole(load_float(source))
    streamed.release_outside()
    outside = [name for name, value in streamed.model.named_parameters() if block_of(name, streamed.blocks) is None]
    assert all(streamed.model.get_parameter(name).is_meta for name in outside)
    streamed.load_outside()
    assert torch.equal(run_by_blocks(streamed), expected)


@pytest.mark.usefixtures("proof_here")
@pytest.mark.parametrize("storage", ["auto", "native"])
def test_a_quantized_model_gives_the_same_bits(source: Path, tmp_path: Path, storage: str) -> None:
    recipe = {
        "stages": [{"rtn": {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}],
        "export": {"format": storage},
    }
    goldstick.quantize(source, recipe, output=tmp_path / "out", proof="tensors")
    assert torch.equal(run_by_blocks(StreamedModel(tmp_path / "out")), whole(load(tmp_path / "out")))


@pytest.mark.usefixtures("proof_here")
def test_only_the_block_at_hand_is_in_memory(tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-w4a16-g32", output=tmp_path / "packed", proof="tensors")
    for directory in (tmp_path / "float", tmp_path / "packed"):
        streamed = StreamedModel(directory)

        def resident(model: Any) -> set[str]:
            state = {**dict(model.named_parameters()), **model.state_dict()}
            return {name for name, value in state.items() if not value.is_meta}

        outside = resident(streamed.model)
        assert outside == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
        streamed.load("model.layers.1")
        read = resident(streamed.model) - outside
        assert all(name.startswith("model.layers.1.") for name in read)
        assert any("mlp.down_proj.weight" in name for name in read)
        streamed.release("model.layers.1")
        assert resident(streamed.model) == outside


@pytest.mark.parametrize(("lost", "place"), [("model.norm.weight", None), ("layers.1.mlp.up_proj", "model.layers.1")])
def test_a_missing_tensor_is_named(tmp_path: Path, lost: str, place: str | None) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path)
    kept = {name: info.read() for name, info in open_tensors(tmp_path).items() if lost not in name}
    (tmp_path / "model.safetensors").unlink()
    with SafetensorsWriter(
        tmp_path / "model.safetensors", {name: (value.shape, value.dtype) for name, value in kept.items()}
    ) as writer:
        for name, value in kept.items():
            writer.write(name, value)
    with pytest.raises(CheckpointError, match=f"missing .*{lost}"):
        streamed = StreamedModel(tmp_path)
        assert place is not None
        streamed.load(place)
