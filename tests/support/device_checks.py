"""Checks on the device of tests, in a process of their own: torch forgets no device that it was told of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

import goldstick
from goldstick.calibration import device_memory
from goldstick.core.parcels import packed, unpacked
from goldstick.errors import UsageError
from goldstick.hf import resting_layers
from goldstick.jobs.quantize.blockwise_model import BlockwiseModel
from tests.support.crash_points import contents
from tests.support.rank_jobs import job, write_sources
from tests.support.ranks import quantize
from tests.support.second_device import NAME, OnDevice, few_candidates, second_device

_W4 = {"scheme": "w4a16-g32"}


@pytest.fixture(autouse=True)
def quick_searches() -> Iterator[None]:
    """Without most of the candidates of searches."""
    with few_candidates():
        yield


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
        "stages": [{"gptq": {**_W4, "gptaq": True}}],
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
    ("source", "stages", "largest", "together"),
    [
        ("llama", [{"awq": {"quantize": False, "grid": 1}}, {"gptq": {**_W4, "gptaq": True}}], 64 * 32, True),
        ("llama", [{"gptq": {"scheme": "w8a8-static"}}, "validate"], 64 * 32, False),
        ("mixture", [{"gptq": _W4}], 5 * 3 * 32 * 32, False),
    ],
    ids=["awq, gptaq", "static inputs, one by one", "mixture, one by one"],
)
def test_a_block_larger_than_the_device_is_there_in_parts_and_gives_the_same_bytes(
    source: str, stages: list[Any], largest: int, together: bool, data: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    most, room = 0, 4 * largest  # bytes of float32

    def have(resting: Any, layer: nn.Module) -> None:
        nonlocal most
        plain(resting, layer)
        most = max(most, sum(_on_the_device(one) for one in resting._watched))

    plain = resting_layers.RestingLayers.have
    monkeypatch.setattr(resting_layers.RestingLayers, "have", have)
    monkeypatch.setattr(BlockwiseModel, "_fits_together", lambda *_: together)
    calibration = {"dataset": str(data / "rows.jsonl"), "packing": False, "samples": 6, "seq_len": 64}
    job = {"source": data / source, "recipe": {"stages": stages, "calibration": calibration}}
    quantize({**job, "output": tmp_path / "cpu", "options": {}})
    with second_device():
        monkeypatch.setattr(device_memory, "free_on_device", lambda _: 2 * room)  # half of it for weights
        quantize({**job, "output": tmp_path / NAME, "options": {"device": NAME}})
    assert 0 < most <= room
    there, here = (load((tmp_path / device / "model.safetensors").read_bytes()) for device in (NAME, "cpu"))
    assert there.keys() == here.keys()
    for name, value in here.items():
        if name.endswith("input_scale"):  # behind a layer that C++ multiplied on the CPU
            torch.testing.assert_close(there[name], value)
        else:
            assert torch.equal(there[name], value), name


def test_what_takes_gradients_of_a_whole_block_is_refused_where_it_does_not_fit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "free_on_device", lambda _: 1000)
    with second_device():
        for name, said in (("learn", "learn takes the gradients"), ("output", "objective: output takes the gradients")):
            with pytest.raises(UsageError, match=f"gold:0 has room for 0.0 GB. Its.*{said}.*--device cpu"):
                quantize(job(data, name, tmp_path / name, device=NAME))


def _on_the_device(layer: nn.Module) -> int:
    """Bytes of a layer's float weights that are there."""
    return sum(
        tensor.nbytes
        for name, tensor in layer.named_parameters(recurse=False)
        if tensor.device.type == NAME and not name.startswith("weight_")
    )


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
