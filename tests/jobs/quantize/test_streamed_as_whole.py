"""A rotation and a KV cache, block by block from disk: what the whole model in memory gives, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.calibration.block_loop import BlockLoop
from goldstick.calibration.memory_budget import BASE_MEMORY
from goldstick.checkpoint.kv_cache import KV_SIDECAR
from goldstick.checkpoint.source import open_tensors
from goldstick.hf.cache import quantized_cache_of
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.quantize import quantize
from goldstick.jobs.quantize.quantize import Quantized
from goldstick.jobs.quantize.write import in_memory, write_whole
from goldstick.recipes import Recipe
from tests.support.recipes import DYNAMIC_CACHE, INT4, recipe
from tests.support.tiny_models import FAMILIES
from tests.support.words import goldstick_ids

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

ONLINE = {"rotate": {"online": True}}
INT8 = {"rtn": {"scheme": "w8a16"}}
EVERYTHING = {"rtn": {"scheme": "w8a16", "targets": {"include": ["*", "lm_head", "*embed_tokens"]}}}
GPTAQ = {"gptq": {**INT4, "gptaq": True, "targets": {"include": ["*", "lm_head"]}, "tie": "untie"}}


def stored(made: Quantized) -> dict[str, Tensor]:
    return {name: info.read() for name, info in open_tensors(made.directory).items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def sidecar(made: Quantized) -> bytes | None:
    file = made.directory / KV_SIDECAR
    return file.read_bytes() if file.is_file() else None


@pytest.mark.parametrize(
    ("family", "stages"),
    [
        ("llama_gqa", ("rotate", {"gptq": INT4})),
        ("opt", ("rotate", GPTAQ, "kv_cache")),
        ("opt", ("rotate",)),
        ("llama_gqa", (ONLINE, {"gptq": {"scheme": "w8a8-static"}})),
        ("opt", (ONLINE, INT8)),
        ("llama_gqa", (EVERYTHING, "kv_cache")),
        ("gemma2", ({"gptq": INT4}, {"kv_cache": {"window": 2}})),
        ("llama_gqa", ({"rtn": INT4}, {"kv_cache": {"keys": "tensor", "values": "tensor"}})),
        ("llama_gqa", ("kv_cache",)),
        ("llama_gqa", ({"rtn": INT4}, DYNAMIC_CACHE)),
        ("llama_gqa", ({"gptq": INT4}, DYNAMIC_CACHE)),
    ],
    ids=["rotate-gptq", "rotate-gptaq-kv-tied", "rotate-tied", "online-gptq", "online-rtn-tied", "everything-kv",
         "gptq-kv-sliding", "rtn-kv-by-tensor", "kv-alone", "rtn-kv-dynamic", "gptq-kv-dynamic"],
)  # fmt: skip
def test_what_is_made_block_by_block_is_what_the_whole_model_gives(
    family: str, stages: tuple[Any, ...], sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(sources, *stages)
    with monkeypatch.context() as patch:
        patch.setattr(quantize, "write_whole", lambda *_: pytest.fail("the whole model was built"))
        streamed = goldstick.quantize(sources / family, wanted, output=tmp_path / "streamed")
    assert streamed.report.proof["max_abs_difference"] == 0.0
    monkeypatch.setattr(quantize, "prepare", lambda *_: None)
    monkeypatch.setattr(
        quantize,
        "write_streamed",
        lambda plan, folder, device, tell, ranks: write_whole(plan, folder, in_memory(plan, device, None), tell),
    )
    whole = goldstick.quantize(sources / family, wanted, output=tmp_path / "whole")
    assert equal(stored(streamed), stored(whole))
    assert sidecar(streamed) == sidecar(whole)
    assert (sidecar(whole) is not None) == ("kv_cache" in str(stages))
    assert streamed.report.rotation == whole.report.rotation
    assert streamed.report.kv_cache == whole.report.kv_cache
    configs = [json.loads((made.directory / "config.json").read_text()) for made in (streamed, whole)]
    assert configs[0] == configs[1]  # but for the order in which a native checkpoint lists its layers


@pytest.mark.usefixtures("little_memory")
def test_a_run_cut_short_goes_on_with_little_memory_to_what_the_model_in_memory_becomes(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges of the first block come back from the journal, and are those that the model in memory shows."""
    source, wanted = sources / "llama_gqa", recipe(sources, "rotate", {"gptq": INT4}, "kv_cache")
    real = BlockLoop.advance

    def stop(loop: BlockLoop, block: str, *rest: Any) -> Any:
        if block.endswith(".1"):
            raise KeyboardInterrupt
        return real(loop, block, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BlockLoop, "advance", stop)
        goldstick.quantize(source, wanted, output=tmp_path / "out")
    resumed = goldstick.quantize(source, wanted, output=tmp_path / "out", resume=True, max_memory=1)
    assert resumed.report.proof["max_abs_difference"] == 0.0
    assert resumed.report.rotation["error_of_the_whole_model"] < 1e-8, "of the first run, which had the memory"
    ids = torch.tensor(goldstick_ids(source, sources / "text.txt", samples=4, seq_len=32))
    in_memory: Any = goldstick.apply(goldstick.load(source), wanted, data=[ids])
    saved = in_memory.save(tmp_path / "saved")
    assert (saved / KV_SIDECAR).read_bytes() == sidecar(resumed)
    assert equal(stored(resumed), {name: info.read() for name, info in open_tensors(saved).items()})
    settings = quantized_cache_of(in_memory.model)
    assert settings is not None
    assert set(settings.scales) == {0, 1}


@pytest.mark.usefixtures("little_memory")
def test_a_rotation_is_proven_on_the_whole_model_only_where_the_memory_allows(sources: Path, tmp_path: Path) -> None:
    wanted = recipe(sources, "rotate")
    free = goldstick.quantize(sources / "llama_gqa", wanted, output=tmp_path / "free")
    bounded = goldstick.quantize(sources / "llama_gqa", wanted, output=tmp_path / "bounded", max_memory=1)
    assert free.report.rotation["error_of_the_whole_model"] < 1e-8
    assert bounded.report.rotation["error_of_the_whole_model"] is None
    assert bounded.report.rotation["error_with_a_block_of_each_kind"] < 1e-9
    assert equal(stored(free), stored(bounded))


def test_the_forecast_of_memory_knows_the_float64_copies_of_a_rotation(sources: Path) -> None:
    rounded, turned = (
        make_plan(sources / "llama_gqa", Recipe.load(recipe(sources, *stages)))
        for stages in ((INT8, "kv_cache"), ("rotate", INT8))
    )
    blocks = [sum(p.numel() for p in block.parameters()) for block in FAMILIES["llama_gqa"]().model.layers]
    whole = 4 * sum(p.numel() for p in FAMILIES["llama_gqa"]().parameters())
    assert rounded.proof_memory == 0
    assert turned.proof_memory == 3 * whole, "float32, and a float64 copy of it"
    assert rounded.peak_memory - BASE_MEMORY == int(2 * 4 * 128 * 64 + 4 * 64 + 2.5 * 4 * blocks[0])
    assert turned.peak_memory - BASE_MEMORY == turned.proof_memory
