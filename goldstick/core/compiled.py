"""Operators that compute what an algorithm also has in plain torch, and the devices that they run on.

Algorithms may not import kernels: those declare their operators here when they are loaded, and algorithms ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_RUNS_ON: dict[tuple[str, str], Callable[[torch.device], bool]] = {}


def declare(name: str, kind: str, runs_on: Callable[[torch.device], bool] = lambda device: True) -> None:
    """Say that ``goldstick::name`` runs on devices of a kind, ``cpu`` or ``cuda``, and on which of them."""
    _RUNS_ON[name, kind] = runs_on


def compiled(name: str, device: torch.device) -> Callable[..., Any] | None:
    """The operator ``goldstick::name``, where it runs on this device; ``None`` where plain torch must do."""
    runs_on = _RUNS_ON.get((name, device.type))
    if runs_on is None or not runs_on(device):
        return None
    operator: Callable[..., Any] = getattr(torch.ops.goldstick, name)
    return operator
