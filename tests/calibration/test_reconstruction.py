"""Block reconstruction: its start, its formula, never worse than what it began with, the same codes on both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import SLBFinish
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.errors import QuantizationError, RecipeError, StructureError
from tests.support.calibration import Batches, seeded_llama, token_batches
from tests.support.proofs import prove_here
from tests.support.tiny_tokenizer import write_tokenizer, write_words

pytestmark = pytest.mark.usefixtures("reference_backend")

W2 = "w2a16-g16"


def some_data(count: int = 4) -> Batches:
    return token_batches(count)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded_llama()


def compressed(model: nn.Module, *stages: Any) -> goldstick.Result:
    looks = not all("rtn" in stage for stage in stages)
    return goldstick.apply(model, {"stages": list(stages)}, data=some_data() if looks else None)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(**batch).logits for batch in some_data()])


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_search_begins_at_its_codes_and_near_the_float_weight(symmetric: bool) -> None:
    grid = Grid(bits=2, symmetric=symmetric, granularity="group", group_size=8)
    weight = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    start = quantize_with_search(weight, grid, "mse")
    search = SLBFinish().search(start, weight)
    assert torch.equal(search.decision().codes, start.codes)
    zero = torch.full_like(start.scale, float(grid.midpoint)) if start.zero is None else start.zero
    expected = torch.empty_like(weight)
    for row in range(6):
        for column in range(16):
            s, z = float(start.scale[row, column // 8]), float(zero[row, column // 8])
            c = int(start.codes[row, column])
            near = c + min(max(float(weight[row, column]) / s + z - c, -0.45), 0.45)
            levels = [k for k in (c - 1, c, c + 1) if 0 <= k <= 3]
            share = torch.tensor([-2 * (near - k) ** 2 for k in levels]).softmax(0)
            expected[row, column] = s * (sum(float(p) * k for p, k in zip(share, levels, strict=True)) - z)
    torch.testing.assert_close(search.weight().detach(), expected, rtol=1e-4, atol=1e-5)
    search.anneal(1.0)
    torch.testing.assert_close(search.weight().detach(), start.dequantize())
    assert (expected - weight).norm() < (start.dequantize() - weight).norm()


@pytest.mark.parametrize("start", ["gptq", "rtn"])
def test_a_finished_model_lies_nearer_to_the_float_one_and_its_notes_say_by_how_much(
    model: nn.Module, start: str
) -> None:
    wanted = logits(model)
    rounding = {start: {"scheme": W2}}
    rounded = compressed(model, rounding)
    finished = compressed(model, rounding, {"slb_finish": {"steps": 60}})
    near, far = ((logits(one.model) - wanted).norm() for one in (finished, rounded))
    assert near < 0.9 * far
    records = {record.name: record for record in finished.report.layers}
    notes = records["model.layers.0.mlp.up_proj.weight"].notes
    assert 0 < float(notes["block_error"]) < float(notes["block_error_before"])
    assert 0 < float(notes["codes_moved"]) < 0.5
    errors = {record.name: record.weight_sqnr_db for record in rounded.report.layers}
    assert errors["model.layers.0.mlp.up_proj.weight"] != records["model.layers.0.mlp.up_proj.weight"].weight_sqnr_db


def test_a_block_that_does_not_get_better_keeps_its_start(model: nn.Module) -> None:
    rounding = {"gptq": {"scheme": W2}}
    still = {"slb_finish": {"steps": 1, "rate": 0, "logits_rate": 1e-9}}
    wild = {"slb_finish": {"steps": 3, "rate": 5.0, "logits_rate": 1e-9}}
    start = compressed(model, rounding)
    for reconstruction in (still, wild):
        found = compressed(model, rounding, reconstruction)
        assert torch.equal(logits(found.model), logits(start.model))
        assert not any("block_error" in record.notes for record in found.report.layers)
    before = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in model.named_parameters()] == before


def test_the_way_by_blocks_gives_what_the_model_in_memory_gives(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.jobs.save.finish.prove", prove_here)
    monkeypatch.setattr("goldstick.jobs.quantize.quantize.require_memory", lambda *_: None)  # nothing keeps to one byte
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    write_tokenizer(tmp_path / "model")
    write_words(tmp_path / "text.txt")
    stages = [{"smoothquant": {}}, {"gptq": {"scheme": W2}}, {"slb_finish": {"steps": 20, "logits_rate": 0.05}}]
    calibration = {"dataset": str(tmp_path / "text.txt"), "samples": 4, "seq_len": 16}
    recipe = {"stages": stages, "calibration": calibration}
    made = goldstick.quantize(tmp_path / "model", recipe, output=tmp_path / "out", max_memory=1)
    whole = goldstick.quantize(tmp_path / "model", recipe, output=tmp_path / "whole")
    assert any("block_error" in record.notes for record in made.report.layers)
    for one in (made, whole):
        assert one.report.proof["max_abs_difference"] == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole"))
    assert first == second


def test_what_cannot_be_finished_is_refused(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    reconstruction = {"slb_finish": {"steps": 1}}
    for stages, words in (
        ([reconstruction, {"gptq": {"scheme": W2}}], "gptq comes after it"),
        ([{"rtn": {"scheme": W2, "targets": {"include": ["lm_head"]}}}, reconstruction], "no stage before it"),
        ([{"rtn": {"scheme": "nvfp4"}}, reconstruction], "integer codes with float scales"),
    ):
        with pytest.raises(RecipeError, match=words):
            compressed(model, *stages)
    for options in ({"steps": 0}, {"anneal_from": 0.9}, {"temperature": 0.5}):
        with pytest.raises(RecipeError):
            goldstick.Recipe.load({"stages": [{"slb_finish": options}]})
    with pytest.raises(QuantizationError, match="loss is nan"):
        compressed(model, {"rtn": {"scheme": W2}}, {"slb_finish": {"steps": 3, "rate": 1e30}})
    monkeypatch.setattr("goldstick.calibration.sweep.find_chains", lambda *_, **__: [])
    with pytest.raises(StructureError, match="do not feed one another"):
        compressed(model, {"rtn": {"scheme": W2}}, reconstruction)
