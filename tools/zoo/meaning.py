"""The float model with dequantized weights: what a quantized one must compute."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.hf.example_inputs import Inputs
from goldstick.nn import PackedParameter, PackedWeight
from goldstick.nn.parameter import parameter_of
from tools.zoo.outputs import difference, outputs_of


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


def layers_apart(twin: nn.Module, quantized: nn.Module, inputs: Inputs) -> tuple[float, str]:
    """The largest difference of a packed layer from its twin, each on what the packed one is given in one run.

    Whole networks may amplify what kernels lose, or choose other experts, boxes or codes for it; single layers do not.
    """
    apart = [(0.0, "")]

    def compare(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, made: Any) -> None:
            with torch.no_grad():
                meant = twin.get_submodule(path)(*given)
            if isinstance(made, Tensor) and isinstance(meant, Tensor):
                apart.append((difference({"": made}, {"": meant}), path))

        return hook

    modules = {path: one for path, one in packed(quantized).items() if not isinstance(one, PackedParameter)}
    handles = [module.register_forward_hook(compare(path)) for path, module in modules.items()]
    try:
        outputs_of(quantized, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return max(apart)


def packed(model: nn.Module) -> dict[str, PackedWeight]:
    """Every packed weight by its path."""
    return {name: module for name, module in model.named_modules() if isinstance(module, PackedWeight)}


def _parameter(model: nn.Module, path: str) -> Tensor:
    owner, _, name = parameter_of(path).rpartition(".")
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
    if weight.ndim > 2 and matrix.numel() == weight.numel():
        outputs_behind = matrix.reshape(weight.shape[1], weight.shape[0], *weight.shape[2:]).transpose(0, 1)
        ways += [matrix.reshape(weight.shape), outputs_behind]
    fitting = [way for way in ways if way.shape == weight.shape]
    if not fitting:
        raise ValueError(f"{path}: a packed weight of the shape {list(matrix.shape)} for {list(weight.shape)}")
    return min(fitting, key=lambda way: float(torch.linalg.vector_norm(way - weight)))
