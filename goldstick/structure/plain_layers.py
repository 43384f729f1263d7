"""Whether a layer computes what its class is known for: subclasses may make more of their weight than a product."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

#: Rows of a weight that a layer is tried with.
_ROWS = 32
_TOLERANCE = 1e-4


def computes_plainly(module: nn.Module) -> bool:
    """Whether a linear layer or a 2-D convolution gives W·x + b, and nothing but that.

    A class with the forward of ``nn.Linear`` or ``nn.Conv2d`` does. One with a forward of its own may standardize its
    weight, scale its output or choose experts by it, and a quantized layer in its place would not: so it is tried on
    random numbers, in evaluation mode, with a random weight of the same columns. Other modules count as plain.

    Args:
        module: The layer, which may lie on the meta device. Hooks, and a forward of the instance, are not looked at.
    """
    if isinstance(module, nn.Linear):
        inherits = type(module).forward is nn.Linear.forward
    elif isinstance(module, nn.Conv2d):
        inherits = type(module).forward is nn.Conv2d.forward
        inherits = inherits and type(module)._conv_forward is nn.Conv2d._conv_forward
    else:
        return True
    if inherits:
        return True
    # On the processor whatever the caller's default device is: while a model is loaded, that is the meta device.
    with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        twin = _with_few_rows(module, generator)
        x = torch.randn(_input_shape(module), generator=generator)
        forward: Any = type(module).forward
        try:
            found = forward(twin, x)
        except Exception:  # any code of the layer may fail, in any way
            return False
        expected = _plain(twin, x)
        if not isinstance(found, Tensor) or found.shape != expected.shape:
            return False
        return bool((found - expected).norm() <= _TOLERANCE * expected.norm())


def _with_few_rows(module: nn.Linear | nn.Conv2d, generator: torch.Generator) -> nn.Linear | nn.Conv2d:
    """The module in evaluation mode, with random weights of the same columns."""
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    in_groups = isinstance(module, nn.Conv2d) and module.groups > 1
    for name in ("weight", "bias"):
        parameter = module._parameters.get(name)
        if parameter is not None:
            rows = len(parameter) if in_groups else min(len(parameter), _ROWS)
            values = torch.randn(rows, *parameter.shape[1:], generator=generator)
            twin._parameters[name] = nn.Parameter(values, requires_grad=False)
    twin.training = False
    return twin


def _input_shape(module: nn.Linear | nn.Conv2d) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return 2, 3, module.in_features
    sides = zip(module.kernel_size, module.dilation, module.stride, strict=True)
    return 2, module.in_channels, *(kernel * dilation + stride + 2 for kernel, dilation, stride in sides)


def _plain(module: Any, x: Tensor) -> Tensor:
    if isinstance(module, nn.Linear):
        return nn.Linear.forward(module, x)
    found: Tensor = nn.Conv2d._conv_forward(module, x, module.weight, module.bias)
    return found
