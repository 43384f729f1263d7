"""GPTAQ from a checkpoint to a checkpoint: the float model's hidden states outlive a run that was cut short."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.calibration.block_loop import BlockLoop
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.words import goldstick_ids

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama of four blocks with a tokenizer."""
    directory = tmp_path_factory.mktemp("llama")
    small = FAMILIES["llama_gqa"]()
    config = copy.deepcopy(small.config)
    config.num_hidden_layers = 4
    config.layer_types = None
    torch.manual_seed(0)
    model = type(small)(config)
    model.load_state_dict(small.state_dict(), strict=False)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def recipe(text: Path) -> dict[str, Any]:
    """The head lies outside the blocks; one layer of each block is rounded without data."""
    return {
        "stages": [
            {"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*o_proj"]}}},
            {
                "gptq": {
                    "scheme": "w3a16-g32",
                    "gptaq": True,
                    "targets": {"include": ["*_proj", "lm_head"], "exclude": ["*o_proj"]},
                }
            },
        ],
        "calibration": {"dataset": str(text), "samples": 12, "seq_len": 64},
    }


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.safetensors")}


@pytest.mark.usefixtures("little_memory")
def test_a_run_that_was_cut_short_goes_on_with_little_memory_to_the_same_bytes_and_to_those_of_the_model_in_memory(
    source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = goldstick.quantize(source, recipe(text), output=tmp_path / "whole")
    assert whole.report.proof["max_abs_difference"] == 0.0
    real = BlockLoop.advance

    def stop(loop: BlockLoop, block: str, *rest: Any) -> Any:
        if block.endswith(".2"):
            raise KeyboardInterrupt
        return real(loop, block, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(BlockLoop, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            goldstick.quantize(source, recipe(text), output=tmp_path / "resumed")
    calls: list[str] = []
    monkeypatch.setattr(
        BlockLoop, "advance", lambda loop, block, *rest: calls.append(block) or real(loop, block, *rest)
    )
    resumed = goldstick.quantize(source, recipe(text), output=tmp_path / "resumed", resume=True, max_memory=1)
    assert [block.rpartition(".")[2] for block in calls] == ["2", "3"]
    assert files(resumed.directory) == files(whole.directory)

    model = AutoModelForCausalLM.from_pretrained(source)
    ids = torch.tensor(goldstick_ids(source, text))
    in_memory = goldstick.apply(model, recipe(text), data=list(ids.split(32)))
    inputs = sample_inputs(model)
    assert torch.equal(answer(in_memory.model, inputs), answer(goldstick.load(whole.directory), inputs))
    notes = {layer.name: layer.notes for layer in in_memory.report.layers if layer.algorithm == "gptq"}
    assert "lm_head.weight" in notes
    assert all("symmetric" not in note for note in notes.values())
