"""Batch norms that convolutions can take over: found by running the network, and folded.

In evaluation a batch norm is y = (x − μ) · g / √(σ² + ε) + b for each channel. With x = W ∗ u + c the two are one
convolution, of W·g/√(σ² + ε) and (c − μ) · g/√(σ² + ε) + b (arXiv 1712.05877, section 3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from goldstick.core.edits import FoldNorm
from goldstick.errors import StructureError
from goldstick.structure.plain_layers import inherits_forward
from goldstick.structure.trace import evaluating, tensors_in

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def find_norm_folds(model: nn.Module, inputs: Mapping[str, Any]) -> list[FoldNorm]:
    """Batch norms whose input is the output of one convolution, which nothing else reads, in order of execution.

    Both must be called once, by torch's own forward, and share no parameter with others; the norm must keep running
    statistics.

    Args:
        model: The network, in memory; left as it is.
        inputs: Keyword arguments of its forward.
    """
    paths: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(module, path)
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    read: list[tuple[nn.Module, Tensor]] = []
    calls: Counter[nn.Module] = Counter()

    def note_output(module: nn.Module, _: Any, output: Tensor) -> None:
        calls[module] += 1
        made[id(output)] = module, output  # held, so that no other tensor gets its place

    def note_input(module: nn.Module, args: tuple[Any, ...]) -> None:
        calls[module] += 1
        read.append((module, args[0] if args else torch.empty(0)))

    alone = _owning_alone(model)
    hooks = [module.register_forward_hook(note_output) for module in paths if module in alone and _convolves(module)]
    hooks += [
        module.register_forward_pre_hook(note_input) for module in paths if module in alone and _normalises(module)
    ]
    try:
        with evaluating(model), torch.no_grad(), _Uses() as uses:
            output = model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    given = {id(tensor) for tensor in tensors_in(output)}
    found = []
    for norm, x in read:
        convolution = made.get(id(x), (None, x))[0]
        once = convolution is not None and calls[convolution] == calls[norm] == 1
        if convolution is not None and once and uses.of(x) == 1 and id(x) not in given:
            found.append(FoldNorm(convolution=paths[convolution], norm=paths[norm]))
    return found


@torch.no_grad()
def fold_norm(convolution: Any, norm: Any) -> None:
    """Let a convolution give what the batch norm behind it makes of its output, in place; the norm is left as it is.

    Computed in float64 and stored in the dtype of the weight.

    Raises:
        StructureError: The two have other numbers of channels, or are no convolution and no batch norm.
    """
    if not _convolves(convolution) or not _normalises(norm) or convolution.out_channels != norm.num_features:
        raise StructureError(f"A {type(norm).__name__} cannot be folded into this {type(convolution).__name__}.")
    weight, mean = convolution.weight, norm.running_mean.double()
    gain = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        gain = gain * norm.weight.double()
    bias = (0.0 if convolution.bias is None else convolution.bias.double()) - mean
    shift = bias * gain + (0.0 if norm.bias is None else norm.bias.double())
    weight.copy_(weight.double() * gain.view(-1, *[1] * (weight.ndim - 1)))
    convolution.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=weight.requires_grad)


def norm_fold_from_dict(value: object) -> FoldNorm:
    """The edit that a checkpoint's config describes.

    Raises:
        StructureError: It describes none.
    """
    names = value if isinstance(value, Mapping) else {}
    if not all(isinstance(names.get(key), str) for key in ("convolution", "norm")):
        raise StructureError(f"{value!r} describes no folded batch norm.")
    return FoldNorm(convolution=str(names["convolution"]), norm=str(names["norm"]))


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how many operators read each tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted: Counter[int] = Counter()
        self._held: list[Any] = []

    def of(self, tensor: Tensor) -> int:
        """How many operators read it."""
        return self._counted[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs or {})) if isinstance(value, Tensor)]
        self._counted.update({id(tensor) for tensor in tensors})
        self._held += tensors  # held, so that no other tensor gets its place
        return func(*args, **(kwargs or {}))


def _convolves(module: Any) -> bool:
    return isinstance(module, _CONVOLUTIONS) and isinstance(module.weight, nn.Parameter) and inherits_forward(module)


def _normalises(module: Any) -> bool:
    plain = isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward
    return plain and module.running_mean is not None and module.running_var is not None


def _owning_alone(model: nn.Module) -> set[nn.Module]:
    """Modules none of whose parameters is that of another module too."""
    owners: Counter[int] = Counter()
    modules = list(model.modules())
    for module in modules:
        owners.update({id(parameter) for parameter in module._parameters.values() if parameter is not None})
    return {
        module
        for module in modules
        if all(owners[id(one)] == 1 for one in module._parameters.values() if one is not None)
    }
