"""FP8 checkpoints that transformers itself has written; it is told of a GPU, without which it writes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

import goldstick
from goldstick.errors import GoldstickError
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.quantized_sources import deepseek_in_fp8
from tests.support.tiny_mixtures import MIXTURES

IDS = torch.arange(16)[None]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """What transformers asks before it keeps weights in FP8; it then works on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        yield


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def rounded(folder: Path, leave: list[str]) -> Path:
    """A DeepSeek-V3 that transformers rounds to FP8 blocks and stores."""
    MIXTURES["deepseek_v3"]().to(torch.bfloat16).save_pretrained(folder / "float")
    config = FineGrainedFP8Config(weight_block_size=(16, 16), modules_to_not_convert=leave)
    with as_on_a_gpu():
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder / "float", dtype=torch.bfloat16, quantization_config=config, device_map={"": "cpu"}
        )
        model.save_pretrained(folder / "fp8")
    return folder / "fp8"


def test_a_deepseek_that_it_reads_and_writes_has_the_layout_that_other_tests_write(tmp_path: Path) -> None:
    deepseek_in_fp8(tmp_path / "published")
    with as_on_a_gpu():
        model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype="auto", device_map={"": "cpu"})
        model.save_pretrained(tmp_path / "written")
    published, written = (load_file(tmp_path / name / "model.safetensors") for name in ("published", "written"))
    assert written.keys() == {name for name in published if ".61." not in name}  # a block that it leaves out
    assert sum(tensor.dtype is torch.float8_e4m3fn for tensor in written.values()) > 20
    for name, tensor in written.items():
        theirs = published[name].float() if "correction_bias" in name else published[name]  # which it keeps in float32
        assert tensor.dtype is theirs.dtype and torch.equal(bits(tensor), bits(theirs)), name
    assert open_source(tmp_path / "written").quantized_as == open_source(tmp_path / "published").quantized_as


@pytest.mark.parametrize("scheme", ["w4a16-g32", "nvfp4a16"])
def test_what_it_rounds_itself_is_read_and_quantized_again(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference_backend: None
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    source = rounded(tmp_path, ["lm_head", "experts"])
    assert examine(source).healthy
    theirs: Any = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    recipe = {"stages": [{"rtn": {"scheme": scheme, "group_size_mismatch": "channel"}}]}
    done = goldstick.quantize(source, recipe, output=tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(load_float(source)(IDS).logits, theirs(IDS).logits)
        expected = goldstick.apply(theirs, recipe).model(IDS).logits
        assert torch.equal(goldstick.load(tmp_path / "again")(IDS).logits, expected)
    assert done.report.warnings[0].startswith("Quantized from fp8 (")


def test_experts_whose_scales_it_stores_apart_are_no_layers_of_fp8(tmp_path: Path) -> None:
    """It stacks their scales and not their weights, and cannot read that itself."""
    source = rounded(tmp_path, ["lm_head"])
    assert "model.layers.1.mlp.experts.down_proj_scale_inv" in load_file(source / "model.safetensors")
    assert not examine(source).healthy
    with pytest.raises(GoldstickError, match=r"unexpected keys model\.layers\.1\.mlp\.experts\.down_proj_scale_inv"):
        goldstick.quantize(source, "rtn-w4a16-g32", output=tmp_path / "again")
    assert not (tmp_path / "again").exists()
