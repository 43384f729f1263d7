"""Activations that the quantized convolutions before them take over: outputs are bounded before they are written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from goldstick import surgery
from goldstick.jobs.optimize.optimization import Change, Step
from goldstick.kernels.prepared_convolution import Bounds
from goldstick.nn import QuantizedConvolution
from goldstick.structure.following import find_followers

_FORWARDS = {nn.ReLU: nn.ReLU.forward, nn.Hardtanh: nn.Hardtanh.forward, nn.ReLU6: nn.ReLU6.forward}


def bounded(model: nn.Module, inputs: Mapping[str, Any]) -> list[Step]:
    """Let convolutions keep their outputs within the bounds of what alone reads them: a ReLU, ReLU6 or Hardtanh.

    Which ones, a forward pass with ``inputs`` shows. Layers with hooks are left alone, and so are bounds that the dtype
    of the layer does not have.
    """
    if not any(isinstance(module, QuantizedConvolution) for module in model.modules()):
        return []
    steps: list[Step] = []
    for paths in find_followers(model, inputs, _takes_over, lambda module: bounds_of(module) is not None):
        convolution, activation = (model.get_submodule(path) for path in paths)
        bounds = bounds_of(activation)
        assert isinstance(convolution, QuantizedConvolution) and bounds is not None
        exact = torch.tensor(bounds, dtype=torch.float64)
        if torch.equal(exact.to(convolution.weight_scale.dtype).double(), exact):
            undo = surgery.bound_outputs(convolution, activation, bounds)
            steps.append((Change(what="one convolution and activation", modules=paths), undo))
    return steps


def bounds_of(module: Any) -> Bounds | None:
    """Between what an activation keeps its input; ``None`` of a module that does anything else, or is hooked."""
    kind = next((kind for kind in _FORWARDS if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not _FORWARDS[kind] or "forward" in vars(module) or _hooked(module):
        return None
    return (0.0, math.inf) if kind is nn.ReLU else (float(module.min_val), float(module.max_val))


def _takes_over(module: nn.Module) -> bool:
    return isinstance(module, QuantizedConvolution) and module.only_multiplies and not _hooked(module)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
