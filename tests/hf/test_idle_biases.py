"""GPTQ files of earlier versions of AutoGPTQ: a bias of zeros beside every layer, whether it has one or not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.errors import CheckpointError
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("reference_backend", "transformers_as_it_was")

PLAIN = FOLDER / "autogptq-gptq"
IDS = torch.arange(16)[None]


def with_biases(into: Path, value: float = 0.0) -> Path:
    directory = Path(shutil.copytree(PLAIN, into))
    file = next(directory.glob("gptq_model*.safetensors"))
    found = load_file(file)
    biases = {
        name.replace(".scales", ".bias"): torch.full((scales.shape[1],), value, dtype=torch.float16)
        for name, scales in found.items()
        if name.endswith(".scales")
    }
    assert len(biases) == 7
    file.unlink()
    save_file(found | biases, directory / "model.safetensors", {"format": "pt"})
    return directory


def test_biases_of_zeros_that_the_model_has_no_place_for_add_nothing(tmp_path: Path) -> None:
    directory, expected = with_biases(tmp_path / "old"), goldstick.load(PLAIN)(IDS).logits
    assert torch.equal(goldstick.load(directory)(IDS).logits, expected)
    assert "7 quantized layers" in verify_checkpoint(directory)["proof"]
    assert not [finding for finding in examine(directory).findings if finding.severity == "fault"]
    made = api.export(directory, "gptq-v2", output=tmp_path / "v2", proof="tensors").directory
    again = api.quantize(directory, "rtn-w8a16", output=tmp_path / "again").directory
    assert torch.equal(goldstick.load(made)(IDS).logits, expected)
    assert (goldstick.load(again)(IDS).logits - expected).abs().max() < 0.05 * expected.abs().max()


def test_transformers_takes_them_without_a_word_of_what_is_left(tmp_path: Path) -> None:
    goldstick.register("gptq")
    model: Any
    model, info = AutoModelForCausalLM.from_pretrained(with_biases(tmp_path / "old"), output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert torch.equal(model(IDS).logits, goldstick.load(PLAIN)(IDS).logits)


def test_a_bias_that_adds_something_is_not_left_out(tmp_path: Path) -> None:
    directory = with_biases(tmp_path / "old", 0.5)
    with pytest.raises(CheckpointError, match=r"unexpected keys model.layers.0.*\.bias"):
        goldstick.load(directory)
    assert any(finding.check == "extra-tensors" for finding in examine(directory).findings)


@pytest.mark.parametrize("key", ["checkpoint_format", "pack_dtype"])
def test_a_layout_that_is_null_is_that_of_configs_without_one(key: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(PLAIN, tmp_path / "null"))
    change_json(directory / "config.json", lambda config: config["quantization_config"].update({key: None}))
    assert torch.equal(goldstick.load(directory)(IDS).logits, goldstick.load(PLAIN)(IDS).logits)
