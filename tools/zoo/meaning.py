"""The float model with dequantized weights: what a quantized one must compute."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from goldstick.nn import PackedWeight


def dequantized_twin(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """A copy of the float model whose weights are those that the quantized one's codes stand for.

    How a parameter stores its matrix is not asked but seen: of the ways that fit, the one nearest to the float weight.

    Raises:
        ValueError: A packed weight stands where the float model has none of its shape.
    """
    twin = copy.deepcopy(model)
    for path, module in packed(quantized).items():
        parameter = _parameter(twin, path)
        parameter.data.copy_(_as_stored(path, module.dequantized(), parameter))
    return twin


def packed(model: nn.Module) -> dict[str, PackedWeight]:
    """Every packed weight by its path."""
    return {name: module for name, module in model.named_modules() if isinstance(module, PackedWeight)}


def _parameter(model: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    held = getattr(model.get_submodule(owner), name)
    if isinstance(held, nn.Parameter):
        return held
    for candidate in ("weight", "kernel"):
        if isinstance(getattr(held, candidate, None), nn.Parameter):
            parameter: Tensor = getattr(held, candidate)
            return parameter
    raise ValueError(f"the float model has no weight at {path}, where a packed one stands")


def _as_stored(path: str, matrix: Tensor, parameter: Tensor) -> Tensor:
    weight = parameter.detach()
    ways = [matrix, matrix.transpose(-1, -2)] if matrix.ndim >= 2 else [matrix]
    fitting = [way for way in ways if way.shape == weight.shape]
    if not fitting and matrix.numel() == weight.numel():
        fitting = [matrix.reshape(weight.shape)]
    if not fitting:
        raise ValueError(f"{path}: a packed weight of the shape {list(matrix.shape)} for {list(weight.shape)}")
    return min(fitting, key=lambda way: float(torch.linalg.vector_norm(way - weight)))
