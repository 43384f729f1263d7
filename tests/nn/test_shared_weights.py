"""Layers that share a weight share the quantized one."""

from __future__ import annotations

import torch
from torch import nn

import goldstick
from goldstick.nn import QuantizedLinear


def shared() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model[2].weight = model[0].weight
    return model


def test_both_run_on_one_packed_weight_each_with_its_own_bias() -> None:
    model, x = shared(), torch.randn(4, 64)
    quantized = goldstick.apply(model, "rtn-w8a16").model
    first, last = quantized[0], quantized[2]
    assert isinstance(first, QuantizedLinear) and isinstance(last, QuantizedLinear)
    assert last.weight_packed is first.weight_packed and last.weight_scale is first.weight_scale
    meant = torch.relu(x @ first.dequantized().T + model[0].bias) @ first.dequantized().T + model[2].bias
    assert float((quantized(x) - meant).detach().norm()) <= 1e-4 * float(meant.detach().norm())


def test_no_scale_is_folded_into_a_weight_that_two_read() -> None:
    model, data = shared(), [torch.randn(8, 64)]
    recipe = {"stages": [{"awq": {"scheme": "w4a16-g32", "unfoldable": "multiply"}}]}
    quantized = goldstick.apply(model, recipe, data=data).model
    assert quantized[0].input_multiplier is None and quantized[2].input_multiplier is None
