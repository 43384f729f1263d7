"""Experts of a mixture in formats whose tensors cannot be stacked: read, and equal to those in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.quantizers import auto

import goldstick
from goldstick.errors import FormatError
from goldstick.hf import quantizer
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.foreign import serve
from goldstick.hf.native_tensors import with_native_tensors
from goldstick.jobs.save import finish
from tests.support.proofs import answer, prove_here
from tests.support.tiny_mixtures import MIXTURES

IDS = torch.arange(16)[None]


@pytest.fixture(autouse=True)
def proof_without_a_process(monkeypatch: pytest.MonkeyPatch, reference_backend: None) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)


@pytest.mark.parametrize("form", ["compressed-tensors", "native"])
@pytest.mark.parametrize("scheme", ["nvfp4a16", "mxfp4a16", "fp8a16", "fp8a16-block"])
def test_experts_in_small_floats_are_stored_and_loaded(scheme: str, form: str, tmp_path: Path) -> None:
    stage = {"scheme": scheme, "group_size_mismatch": "channel"}
    result = goldstick.apply(MIXTURES["deepseek_v3"](), {"stages": [{"rtn": stage}], "export": {"format": form}})
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out")
    found, expected = (answer(model, {"input_ids": IDS}) for model in (loaded, result.model))
    assert torch.equal(found, expected)


def test_transformers_alone_cannot_gather_them_and_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "fp8a16", "group_size_mismatch": "channel"}}]}
    goldstick.apply(MIXTURES["mixtral"](), recipe).save(tmp_path / "out")
    method = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["quant_method"]
    monkeypatch.setattr(auto, "AUTO_QUANTIZER_MAPPING", dict(auto.AUTO_QUANTIZER_MAPPING))
    monkeypatch.setattr(auto, "AUTO_QUANTIZATION_CONFIG_MAPPING", dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING))
    monkeypatch.setattr(quantizer, "AUTO_QUANTIZER_MAPPING", auto.AUTO_QUANTIZER_MAPPING)
    monkeypatch.setattr(quantizer, "AUTO_QUANTIZATION_CONFIG_MAPPING", auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    serve(frozenset({method}))
    with pytest.raises(FormatError, match=r"holds experts in fp8a16, .* Load the checkpoint with goldstick\.load"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")


def test_what_the_files_hold_is_read_as_it_is_where_it_can_be_stacked(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"stages": [{"rtn": {"scheme": "nvfp4a16", "group_size_mismatch": "channel"}}]}
    for form in ("native", "compressed-tensors"):
        result = goldstick.apply(MIXTURES["mixtral"](), recipe | {"export": {"format": form}})
        result.save(tmp_path / form)
        checkpoint = open_quantized(tmp_path / form)
        tensors = with_native_tensors(checkpoint.stored, checkpoint.network)
        if form == "native":
            assert tensors is None
            continue
        assert tensors is not None
        for name, info in tensors.items():
            found = info.read()
            assert (found.shape, found.dtype) == (info.shape, info.dtype), name
            assert (name in checkpoint.stored.tensors) or ".experts." in name
