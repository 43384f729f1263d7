"""Faster forwards of a norm and of a gated feed-forward; the modules stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.kernels.fused import gated_silu, rms_norm
from goldstick.kernels.prepared import runs_at_once
from goldstick.nn.fused.module_guard import ModuleGuard
from goldstick.nn.linear import QuantizedLinear


class NormForward:
    """weight · round(x / √(mean x² + ε)), as one operation; where gradients are wanted, the norm's own forward.

    Args:
        norm: A module with the parameter ``weight`` [channels].
        epsilon: What is added to the mean.
    """

    def __init__(self, norm: nn.Module, epsilon: float) -> None:
        self.module, self.epsilon = norm, float(epsilon)

    def __call__(self, *given: Any, **named: Any) -> Tensor:
        """[..., channels] → [..., channels]; where more is given, such as a gate, by the norm's own forward."""
        weight = self.module._parameters["weight"]
        assert weight is not None
        x = given[0] if len(given) == 1 and not named else None
        if (
            x is None
            or x.dtype is not weight.dtype
            or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        ):
            found: Tensor = type(self.module).forward(self.module, *given, **named)
            return found
        return rms_norm(x, weight, self.epsilon)


class GatedForward:
    """down(silu(gate(x)) · up(x)), where gate and up are stacked and what follows them is one operation.

    Where something inside was hooked or replaced, the module's own forward runs.

    Args:
        module: What computes it.
        gate: Its first child with the input x, stacked with the second, ``up``, and nothing else.
        down: Maps back.
    """

    def __init__(self, module: nn.Module, gate: QuantizedLinear, down: Callable[[Tensor], Tensor]) -> None:
        self.module, self.gate, self.down = module, gate, down
        self.inside = ModuleGuard(module)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        shared = self.gate.shared
        if shared is None or shared.learns() or not runs_at_once(x) or not self.inside:
            found: Tensor = type(self.module).forward(self.module, x)
            return found
        return self.down(gated_silu(shared.together(x)))


def plain_gate(act: nn.Module) -> bool:
    """Whether an activation is SiLU, told by what it gives."""
    x = torch.linspace(-20, 20, 401, dtype=torch.float32)
    with torch.no_grad():
        return torch.allclose(act(x), F.silu(x), rtol=1e-6, atol=1e-7)
