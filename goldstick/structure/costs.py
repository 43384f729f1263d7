"""What a network costs: parameters, and multiplications of one forward, before and after a cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from goldstick.core.edits import Prune
from goldstick.structure.cut import channel_count
from goldstick.structure.trace import evaluating, tensors_in


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What each layer of a network costs.

    Attributes:
        parameters: Path → numbers of each parameter, and whether each is a matrix.
        macs: Path → multiplications of its matrix in one forward of one sample. Products of activations, as in
            attention, are not counted.
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
        for path, (matrix, vectors) in self.parameters.items():
            rows, of_rows = share.get((path, "output"), (1, 1))
            columns, of_columns = share.get((path, "input"), (1, 1))
            totals["parameters"] += matrix * rows * columns // (of_rows * of_columns) + vectors * rows // of_rows
            totals["macs"] += self.macs.get(path, 0) * rows * columns // (of_rows * of_columns)
        return totals


def costs_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Costs:
    """The costs of a model, whose forward is run once on these arguments."""
    macs: dict[str, int] = {}
    paths = {
        path: module
        for path, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }
    samples = next((tensor.shape[0] for tensor in tensors_in((args, kwargs)) if tensor.ndim), 1)

    def hook_for(path: str) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if (
                isinstance(output, Tensor)
                and channel_count(module, "output")
                and module.get_parameter("weight").ndim > 1
            ):
                channels = output.shape[1 if isinstance(module, _ConvNd) else -1]
                positions = output.numel() // channels
                macs[path] = macs.get(path, 0) + positions * module.get_parameter("weight").numel() // samples

        return hook

    handles = [module.register_forward_hook(hook_for(path)) for path, module in paths.items()]
    try:
        with evaluating(model), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
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
