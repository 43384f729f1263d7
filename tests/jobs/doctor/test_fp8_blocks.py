"""Doctor on FP8 blocks as DeepSeek-V3 is published: scales of zero, codes that are no numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

import goldstick
from goldstick.jobs.doctor.examine import examine

pytestmark = pytest.mark.usefixtures("all_proofs_here")

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("blocks")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory / "float")
    recipe = {"stages": [{"rtn": {"scheme": "fp8-block"}}], "export": {"format": "fp8"}}
    goldstick.quantize(directory / "float", recipe, output=directory / "out", proof="tensors")
    return directory / "out"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (f"{Q}.weight_scale_inv", 0.0, "zero-scales: "),
        (f"{Q}.weight_scale_inv", float("nan"), "some are NaN or infinite"),
        (f"{Q}.weight", float("nan"), "some are NaN"),
    ],
)
def test_planted_faults_are_found_and_named(made: Path, tmp_path: Path, name: str, value: float, words: str) -> None:
    assert not [finding for finding in examine(made).findings if finding.severity == "fault"]
    tensors = load_file(made / "model.safetensors")
    tensors[name].view(-1)[0] = value
    kept = {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()}
    for file, content in kept.items():
        (tmp_path / file).write_bytes(content)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    faults = [finding for finding in examine(tmp_path).findings if finding.severity == "fault"]
    told = [f"{one.check}: {place}" for one in faults for place in one.where]
    assert any(words in one and Q in one for one in told), told
