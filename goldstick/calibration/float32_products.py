"""Half-precision layers whose products are taken in float32, where the processor has none of its own for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from goldstick.core.rows import row_chunks

_HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def multiplying_in_float32(*modules: nn.Module) -> Iterator[None]:
    """Let the half-precision linear layers of some modules on the CPU multiply in float32.

    y = round(W x + b), rounded once: what a product in half precision with float32 sums is, too. On processors without
    one it is several times as fast. Hooks, weights and the dtypes of outputs stay as they are.
    """
    layers = [
        layer
        for module in modules
        for layer in module.modules()
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and "forward" not in vars(layer)
    ]
    for layer in layers:
        layer.forward = partial(_multiply, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)  # one that was quantized meanwhile has none


def _multiply(layer: nn.Linear, input: Tensor) -> Tensor:
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    if weight.dtype not in _HALVES or weight.device.type != "cpu" or input.dtype != weight.dtype:
        return linear(input, weight, bias)
    wide = input.float()
    product = wide.new_empty(*input.shape[:-1], len(weight))
    for part in row_chunks(weight):  # a wide copy of the whole weight would be twice its size
        product[..., part] = linear(wide, weight[part].float(), None if bias is None else bias[part].float())
    return product.to(input.dtype)
