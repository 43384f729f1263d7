"""Checks on the device of tests, in a process of their own: torch forgets no device that it was told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import goldstick
from goldstick.core.parcels import packed, unpacked
from tests.support.crash_points import contents
from tests.support.rank_jobs import write_sources
from tests.support.ranks import quantize
from tests.support.second_device import NAME, OnDevice, second_device

_W4 = {"scheme": "w4a16-g32"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and text as one stream and as rows of unequal length."""
    folder = tmp_path_factory.mktemp("data")
    write_sources(folder)
    return folder


def test_the_device_of_tests_refuses_tensors_of_another() -> None:
    with second_device():
        here, there = torch.ones(3), torch.ones(3, device=NAME)
        assert isinstance(there, OnDevice) and there.device.type == NAME
        assert torch.equal((there + there).cpu(), here + here)
        with pytest.raises(RuntimeError, match="on the same device"):
            here + there


def test_a_run_on_a_device_writes_what_the_processor_writes_and_proves_it_there(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldstick.jobs.proof import worker
    from goldstick.jobs.save import finish as module

    proven: list[dict[str, Any]] = []

    def prove(directory: Path, request: dict[str, Any], expected: Any) -> dict[str, Any]:
        monkeypatch.setattr(worker, "_expected", lambda _: expected)
        proven.append(worker.work(request | {"directory": str(directory)}))
        return proven[-1]

    monkeypatch.setattr(module, "prove", prove)
    recipe = {
        "stages": [{"gptq": {"scheme": "w4a16-g32", "gptaq": True}}],
        "calibration": {"dataset": str(data / "rows.jsonl"), "packing": False, "samples": 20, "seq_len": 64},
    }
    with second_device():
        for device in (NAME, "cpu"):
            made = goldstick.quantize(data / "llama", recipe, output=tmp_path / device, device=device)
            assert made.report.proof["passed"] and made.report.proof["max_abs_difference"] == 0
    files = [contents(tmp_path / device) for device in (NAME, "cpu")]
    for found in files:
        del found["goldstick.json"]  # the proof ran whole layers of C++ on the CPU
    assert files[0] == files[1]
    assert len(proven) == 2


@pytest.mark.parametrize(
    "stages", [[{"rtn": _W4}], [{"gptq": _W4}, {"distill": {"epochs": 1}}]], ids=["streamed", "whole"]
)
def test_what_is_not_calibrated_block_by_block_runs_on_it_too(stages: list[Any], data: Path, tmp_path: Path) -> None:
    recipe = {"stages": stages, "calibration": {"dataset": str(data / "stream.txt"), "samples": 8, "seq_len": 64}}
    quantize({"source": data / "llama", "recipe": recipe, "output": tmp_path / "made", "options": {"device": NAME}})
    assert (tmp_path / "made" / "goldstick.json").exists()


def test_a_model_on_a_device_is_calibrated_with_data_from_the_processor() -> None:
    batches = [torch.randn(50, 32) for _ in range(2)]
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    expected = goldstick.apply(network, "gptq-w4a16-g32", data=batches).model
    with second_device():
        there = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        there.load_state_dict(network.state_dict())
        found = goldstick.apply(there.to(NAME), "gptq-w4a16-g32", data=batches).model
        for name, value in found.state_dict().items():
            assert torch.equal(value.cpu(), expected.state_dict()[name]), name


def test_a_parcel_puts_tensors_where_whoever_takes_it_computes() -> None:
    value = {"codes": [torch.arange(4)], "name": "q_proj", "scale": torch.ones(2).bfloat16()}
    arrived = unpacked(packed(value), torch.device("cpu"))
    assert torch.equal(arrived["codes"][0], value["codes"][0]) and arrived["name"] == "q_proj"
    with second_device():
        sent = packed({"there": value["scale"].to(NAME), "here": value["codes"][0]})
        arrived = unpacked(sent, torch.device(NAME, 0))
        assert arrived["there"].device.type == NAME and arrived["here"].device.type == "cpu"
        assert torch.equal(unpacked(sent, torch.device("cpu"))["there"], value["scale"])
