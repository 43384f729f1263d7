"""What passes hold of a device's memory, and whether all of them may wait in a block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from goldstick.calibration.device_memory import fits_on_device, held_on_device

DEVICE = torch.device("cuda", 0)


def test_what_a_pass_holds_is_the_most_where_a_layer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = iter([100, 130, 170, 150])  # before the pass, then where each layer begins
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert held_on_device(block, lambda: block(torch.ones(1, 4)), DEVICE) == 70
    assert not any(module._forward_pre_hooks for module in block.modules())


@pytest.mark.parametrize(("free", "fits"), [(200_000, False), (2_000_000, True)])
def test_all_passes_wait_where_most_of_what_is_free_holds_them(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    block = nn.Linear(64, 64)  # four Hessians of it are 131,072 bytes, and eight copies of its weight as many
    assert fits_on_device(block, 1000, 100, DEVICE) is fits
    assert not fits_on_device(block, 1000, 2000, DEVICE)
