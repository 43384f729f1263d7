"""A copy of a block on which folds are tried, and how far its output moves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.edits import Fold
from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.network import Site
from goldstick.structure.probe.fold import apply_fold, multiply_columns
from goldstick.structure.trace import map_tensors, materialise, tensors_in

#: Two runs on the same input may differ by this part of the output and no more.
NOISE = 1e-6


class Trial:
    """A float32 copy of a block in evaluation mode, its arguments, and what it puts out untouched.

    A block, or arguments, on the meta device get random numbers first. Use it without gradients.

    Attributes:
        generator: Source of every random number of the probe.
        path: Path of the block in its model.
        sites: The block's sites, but for embeddings.
        block: The copy.
        args: Positional arguments.
        kwargs: Keyword arguments.
        reference: The output of the untouched copy.
        runs: How often the copy has run.

    Raises:
        StructureError: Two runs on the same input differ, so that nothing can be measured.
    """

    def __init__(
        self,
        block: nn.Module,
        path: str,
        sites: Sequence[Site],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seed: int,
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.path, self.runs = path, 0
        self.sites = [site for site in sites if site.layout is not Layout.EMBEDDING]
        self.block = copy.deepcopy(block).float().eval()
        fill_meta(self.block, self.generator)
        devices = {parameter.device for parameter in self.block.parameters()}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")  # where layers come and go
        self.block.to(device)

        def place(tensor: Tensor) -> Tensor:
            tensor = materialise(tensor, self.generator)
            return tensor.to(device, torch.float32 if tensor.is_floating_point() else tensor.dtype)

        self.args, self.kwargs = map_tensors((args, kwargs), place)
        self.reference = self.run()
        repeated = _distance(self.reference, self.run())
        if not repeated <= NOISE:
            raise StructureError(
                f"two runs of block {path} on the same input differ by {repeated:.1e} of the output "
                "(infinity stands for NaN), so that no change of the output can be measured."
            )

    def run(self) -> list[Tensor]:
        """The float tensors that the block puts out."""
        self.runs += 1
        args, kwargs = map_tensors((self.args, self.kwargs), torch.clone)
        return [tensor for tensor in tensors_in(self.block(*args, **kwargs)) if tensor.is_floating_point()]

    def module(self, path: str) -> nn.Module:
        """A module of the copy, by its path in the model."""
        return self.block.get_submodule(path.removeprefix(self.path).removeprefix("."))

    def absolute(self, relative: str) -> str:
        """The path in the model of a path in the block."""
        return ".".join(part for part in (self.path, relative) if part)

    def error(self, sites: Sequence[Site], scale: Tensor, fold: Fold | None) -> float:
        """How far the output moves when ``fold`` is applied, or (``None``) the columns of ``sites`` alone."""
        names = {site.module for site in sites} | ({fold.producer} if fold else set())
        saved = {
            parameter: parameter.clone()
            for name in names
            for parameter in _owner(self.module, name).parameters(recurse=False)
        }
        try:
            if fold is None:
                for site in sites:
                    multiply_columns(self.module(site.module), site, scale)
            else:
                apply_fold(self.module, fold, sites)
            return _distance(self.reference, self.run())
        finally:
            for parameter, value in saved.items():
                parameter.copy_(value)


def _owner(lookup: Callable[[str], nn.Module], name: str) -> nn.Module:
    """The module of that name, or the one that holds the parameter of that name."""
    try:
        return lookup(name)
    except AttributeError:
        return lookup(name.rpartition(".")[0])


def fill_meta(block: nn.Module, generator: torch.Generator) -> None:
    """Random weights in place of meta ones: vectors log-uniform in [1/2, 2], matrices N(0, 1.5 / columns)."""
    filled: dict[Tensor, Tensor] = {}

    def fill(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return materialise(tensor, generator)
        if tensor.ndim < 2:
            return torch.exp2(torch.rand(tensor.shape, dtype=torch.float32, generator=generator) * 2 - 1)
        columns = tensor.shape[-1] if tensor.ndim <= 3 else tensor[0].numel()  # 3-D: one matrix per expert
        return torch.randn(tensor.shape, dtype=torch.float32, generator=generator).mul_((1.5 / columns) ** 0.5)

    for module in block.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None and tensor.is_meta:
                    if tensor not in filled:
                        new = fill(tensor)
                        filled[tensor] = nn.Parameter(new, requires_grad=False) if store is module._parameters else new
                    store[name] = filled[tensor]  # type: ignore[assignment]


def _distance(reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Largest relative distance ‖y' − y‖ / ‖y‖ over the output tensors; infinity where it is not a number."""
    if [tensor.shape for tensor in reference] != [tensor.shape for tensor in outputs]:
        return float("inf")
    worst = 0.0
    for before, after in zip(reference, outputs, strict=True):
        # Masks of minus infinity that pass through a block are equal, and count as no distance.
        moved = torch.where(before == after, torch.zeros_like(before), after - before).double().norm()
        relative = float(moved / before.double().norm().clamp_min(1e-30))
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst
