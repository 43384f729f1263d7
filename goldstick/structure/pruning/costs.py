"""What a network costs: parameters, and multiplications of one forward, before and after a cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from goldstick.core.edits import Prune
from goldstick.core.layout import Layout
from goldstick.structure.network import layout_of
from goldstick.structure.pruning.cut import channel_count
from goldstick.structure.trace import evaluating, samples_in, tensors_in


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What each layer of a network costs.

    Attributes:
        parameters: Path → how many numbers its matrix holds and how many its vectors, of layers that can be cut.
        macs: Path → multiplications of its matrix in one forward of one sample, for linear layers and convolutions of
            all kinds. Products of activations, as in attention, are not counted.
        others: Parameters of other modules.
    """

    parameters: Mapping[str, tuple[int, int]]
    macs: Mapping[str, int]
    others: int

    def of(self, prune: Prune | None = None) -> dict[str, int]:
        """``parameters`` and ``macs`` of the network, after a cut."""
        share: dict[tuple[str, str], tuple[int, int]] = {}
        for part in prune.slices if prune is not None else ():
            share[part.module, part.side] = len(part.kept), part.width
        totals = {"parameters": self.others, "macs": 0}
        for path in {**self.parameters, **self.macs}:
            rows, of_rows = share.get((path, "output"), (1, 1))
            columns, of_columns = share.get((path, "input"), (1, 1))
            matrix, vectors = self.parameters.get(path, (0, 0))
            totals["parameters"] += matrix * rows * columns // (of_rows * of_columns) + vectors * rows // of_rows
            totals["macs"] += self.macs.get(path, 0) * rows * columns // (of_rows * of_columns)
        return totals


def costs_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Costs:
    """The costs of a model, whose forward is run once on these arguments."""
    macs: dict[str, int] = {}
    samples = samples_in((args, kwargs)) or 1

    def hook_for(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if products := _products(module, list(tensors_in((args, kwargs))), output):
                macs[path] = macs.get(path, 0) + products // samples

        return hook

    handles = [module.register_forward_hook(hook_for(path), with_kwargs=True) for path, module in model.named_modules()]
    try:
        with evaluating(model), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    paths = {path: module for path, module in model.named_modules() if list(module.parameters(recurse=False))}
    seen: set[int] = set()
    parameters: dict[str, tuple[int, int]] = {}
    others = 0
    for path, module in paths.items():
        own = [value for value in module.parameters(recurse=False) if id(value) not in seen]
        seen |= {id(value) for value in own}
        if channel_count(module, "output") is None:
            others += sum(value.numel() for value in own)
        else:
            matrices = sum(value.numel() for value in own if value.ndim > 1)
            parameters[path] = matrices, sum(value.numel() for value in own) - matrices
    return Costs(parameters=parameters, macs=macs, others=others)


def _products(module: nn.Module, inputs: Sequence[Tensor], output: Any) -> int:
    """How many multiplications a linear layer or a convolution of any kind, grouped or transposed, did in one call.

    A weight is multiplied once at every position of the output, or of the input where the convolution is transposed.
    Torch's attention module counts as the four linear layers that it is.
    """
    weight = getattr(module, "weight", None)
    positions = 0
    if isinstance(module, nn.MultiheadAttention):  # calls no linear layer
        features = sum(tensor.numel() for tensor in (*inputs[:3], inputs[0]))  # of query, key, value and output
        return int(features * module.embed_dim)
    if isinstance(module, _ConvTransposeNd):
        positions = inputs[0].numel() // module.in_channels
    elif isinstance(module, _ConvNd) and isinstance(output, Tensor):
        positions = output.numel() // module.out_channels
    elif isinstance(output, Tensor) and isinstance(weight, Tensor) and _is_linear(module, weight):
        positions = output.numel() // output.shape[-1]
    return positions * weight.numel() if isinstance(weight, Tensor) else 0


def _is_linear(module: nn.Module, weight: Tensor) -> bool:
    return layout_of(module, "weight", weight) in (Layout.LINEAR, Layout.TRANSPOSED)
