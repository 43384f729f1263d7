"""FP8 checkpoints with ``scale_fmt: ue8m0``, as DeepSeek-V3.1 and V4 are published: scales that are powers of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.load.load import load_float
from tests.support.commands import change_json
from tests.support.quantized_sources import deepseek_in_fp8

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

IDS = torch.arange(24).reshape(2, 12) % 64
both = pytest.mark.parametrize("powers", [torch.float32, torch.float8_e8m0fnu], ids=["float32", "e8m0"])


@both
def test_weights_are_what_their_codes_times_the_powers_stand_for(powers: torch.dtype, tmp_path: Path) -> None:
    numbers = deepseek_in_fp8(tmp_path / "published", powers=powers)
    source = open_source(tmp_path / "published")
    assert source.quantized_as.startswith("fp8 (")
    assert set(source.tensors) == set(numbers)
    for name, expected in numbers.items():
        found = source.tensors[name].read()
        assert found.dtype is expected.dtype and torch.equal(found, expected), name
    assert examine(tmp_path / "published").healthy


@both
def test_a_model_runs_dequantized_as_in_transformers(powers: torch.dtype, tmp_path: Path) -> None:
    deepseek_in_fp8(tmp_path / "published", powers=powers)
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype="auto").eval()
    ours: Any = goldstick.load(tmp_path / "published")
    with torch.no_grad():
        assert torch.equal(ours(IDS).logits, theirs(IDS).logits)


def test_so_does_one_in_float32_whose_inputs_would_have_such_scales(tmp_path: Path) -> None:
    deepseek_in_fp8(tmp_path / "published", powers=torch.float32)
    change_json(tmp_path / "published" / "config.json", lambda config: config.update(dtype="float32"))
    model: Any = goldstick.load(tmp_path / "published")
    expected: Any = load_float(tmp_path / "published")
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, expected(IDS).logits)


@both
def test_it_is_exported_and_quantized_again(powers: torch.dtype, tmp_path: Path) -> None:
    numbers = deepseek_in_fp8(tmp_path / "published", powers=powers)
    made = api.export(tmp_path / "published", "native", output=tmp_path / "native", proof="tensors").directory
    source, name = open_source(made), "model.layers.0.self_attn.o_proj.weight"
    assert torch.equal(source.tensors[name].read(), numbers[name])
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32", "group_size_mismatch": "channel"}}]}
    again = api.quantize(tmp_path / "published", recipe, output=tmp_path / "again").directory
    expected: Any = load_float(tmp_path / "published")
    found: Any = goldstick.load(again)
    with torch.no_grad():
        assert (found(IDS).logits - expected(IDS).logits).abs().max() < 0.05 * expected(IDS).logits.abs().max()
