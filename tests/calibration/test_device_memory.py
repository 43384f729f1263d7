"""What passes hold of a device's memory, and whether all of them may wait in a block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import goldstick.api
from goldstick.calibration import device_memory
from goldstick.calibration.device_memory import fits_on_device, held_on_device, room_for_states, room_for_weights
from goldstick.errors import UsageError

DEVICE = torch.device("cuda", 0)


def test_what_a_pass_holds_is_the_most_where_a_layer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = iter([100, 130, 170, 150])  # before the pass, then where each layer begins
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert held_on_device(block, lambda: block(torch.ones(1, 4)), DEVICE) == 70
    assert not any(module._forward_pre_hooks for module in block.modules())


def test_weights_that_come_and_go_are_none_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated, weights = iter([1000, 1350, 1220]), iter([400, 700, 500])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert held_on_device(block, lambda: block(torch.ones(1, 4)), DEVICE, lambda: next(weights)) == 120


def test_a_block_has_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_on_device", lambda _: 1000)
    assert room_for_weights(500, DEVICE, 0.5) is None
    assert room_for_weights(501, DEVICE, 0.5) == 500
    monkeypatch.undo()
    assert room_for_weights(10**15, torch.device("cpu"), 0.5) is None


def test_states_stay_where_two_of_them_take_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_on_device", lambda _: 1000)
    assert room_for_states(125, DEVICE)
    assert not room_for_states(126, DEVICE)
    monkeypatch.undo()
    assert not room_for_states(1, torch.device("cpu"))


@pytest.mark.parametrize(("free", "fits"), [(200_000, False), (2_000_000, True)])
def test_all_passes_wait_where_most_of_what_is_free_holds_them(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    block = nn.Linear(64, 64)  # four Hessians of it are 131,072 bytes, and eight copies of its weight as many
    assert fits_on_device(block, 1000, 100, DEVICE) is fits
    assert not fits_on_device(block, 1000, 2000, DEVICE)


def test_experts_are_solved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_on_device", lambda _: 1_000_000)
    experts = nn.Module()
    experts.gate_up_proj = nn.Parameter(torch.zeros(16, 64, 64))  # 262,144 bytes, of which each expert has 16,384
    assert fits_on_device(experts, 1000, 300, DEVICE)
    experts.gate_up_proj = nn.Parameter(torch.zeros(64, 64, 64))
    assert not fits_on_device(experts, 1000, 300, DEVICE)


def test_processes_that_share_a_device_share_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000_000, 1_000_000))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for processes, fits in ((1, True), (2, True), (4, False)):
        monkeypatch.setattr(device_memory, "local_count", lambda processes=processes: processes)
        assert fits_on_device(nn.Linear(64, 64), 1000, 400, DEVICE) is fits


def test_a_device_that_is_full_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 79 GiB.")

    monkeypatch.setattr(goldstick.api, "execute", full)
    with pytest.raises(UsageError, match=r"no memory left .* allocate 2.00 GiB\. Free what .* On the device --resume"):
        goldstick.quantize("reference", "rtn-w4a16-g128", output=tmp_path / "made")
