"""Calibrated runs on a GPU, where there is one: proven there, to the same bytes for one process and for two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import goldstick
from goldstick.hf import resting_layers
from goldstick.jobs.quantize import resting
from tests.support.crash_points import contents
from tests.support.rank_jobs import DATA_FREE, RECIPES, job, write_sources
from tests.support.ranks import finish, start

if not torch.cuda.is_available():
    pytest.skip("there is no GPU here; the device of tests stands in for one elsewhere", allow_module_level=True)

#: torch says so where a thread of autograd is the first that multiplies matrices; it makes its context then.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and text as one stream and as rows of unequal length."""
    folder = tmp_path_factory.mktemp("data")
    write_sources(folder)
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_is_proven_on_the_gpu_and_two_processes_that_share_it_give_the_bytes_of_one(
    name: str, data: Path, tmp_path: Path
) -> None:
    one = job(data, name, tmp_path / "one", device="cuda")
    made = goldstick.quantize(one["source"], one["recipe"], output=one["output"], device="cuda")
    assert made.report.proof["passed"], made.report.proof
    for count, place in ((1, "alone"), (2, "together")):
        for code, errors in finish(start(count, [job(data, name, tmp_path / place, device="cuda")])):
            assert code == 0, errors
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in DATA_FREE])
def test_what_the_gpu_decides_is_as_near_to_the_float_model_as_what_the_processor_decides(
    name: str, data: Path, tmp_path: Path
) -> None:
    errors = {}
    for device in ("cpu", "cuda"):
        one = job(data, name, tmp_path / device)
        report = goldstick.quantize(one["source"], one["recipe"], output=one["output"], device=device).report
        errors[device] = [layer.weight_sqnr_db for layer in report.layers if layer.scheme is not None]
    assert errors["cuda"] == pytest.approx(errors["cpu"], abs=0.5)  # decibels


@pytest.mark.parametrize("stage", [{"distill": {"epochs": 1}}, {"slb": {"scheme": "w2a16-g32"}}], ids=str)
def test_what_takes_the_whole_model_runs_there_too(stage: dict[str, Any], data: Path, tmp_path: Path) -> None:
    stages = [stage] if "slb" in stage else [{"gptq": {"scheme": "w4a16-g32"}}, stage]
    recipe = {"stages": stages, "calibration": {"dataset": str(data / "stream.txt"), "samples": 20, "seq_len": 64}}
    made = goldstick.quantize(data / "llama", recipe, output=tmp_path / "made", device="cuda")
    assert made.report.proof["passed"]


def test_a_model_of_ones_own_on_the_gpu_is_calibrated_with_data_from_the_processor() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).cuda()
    compressed = goldstick.apply(network, "gptq-w8a16-g32", data=[torch.randn(100, 32) for _ in range(4)]).model
    x = torch.randn(5, 32, device="cuda")
    assert torch.allclose(compressed(x), network(x), atol=0.02)


def test_the_processor_runs_what_the_gpu_made(data: Path, tmp_path: Path) -> None:
    one = job(data, "mixture", tmp_path / "made")
    goldstick.quantize(one["source"], one["recipe"], output=one["output"], device="cuda")
    model = goldstick.load(tmp_path / "made")
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        on_cpu = model(ids).logits
        on_gpu = model.to("cuda")(ids.to("cuda")).logits.cpu()
    assert torch.allclose(on_cpu, on_gpu, atol=2e-3 * float(on_cpu.abs().max()))


@pytest.mark.parametrize("name", ["awq-gptaq", "mixture"])
def test_a_block_that_is_larger_than_the_gpu_has_the_bytes_of_one_that_fits(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers rest in the processor's memory and come to the GPU one by one; there is room for the largest."""
    whole = job(data, name, tmp_path / "whole", device="cuda")
    goldstick.quantize(whole["source"], whole["recipe"], output=whole["output"], device="cuda")
    moved, move_to = [], resting_layers.move_to

    def noted(module: torch.nn.Module, device: torch.device, recurse: bool = True) -> None:
        moved.append(device.type)
        move_to(module, device, recurse)

    monkeypatch.setattr(resting, "room_for_weights", lambda held, device, share: held // 3)
    monkeypatch.setattr(resting_layers, "move_to", noted)
    parts = job(data, name, tmp_path / "parts", device="cuda")
    goldstick.quantize(parts["source"], parts["recipe"], output=parts["output"], device="cuda")
    assert {"cuda", "cpu"} <= set(moved)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
