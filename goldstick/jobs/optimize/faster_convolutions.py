"""What quantized convolutions do as they write: the work of norms and activations, and what the next one rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from goldstick import surgery
from goldstick.jobs.optimize.optimization import Change, Step
from goldstick.kernels.prepared_convolution import Bounds
from goldstick.nn import QuantizedConvolution
from goldstick.nn.fused.epilogue import DoneBefore
from goldstick.structure.following import find_followers
from goldstick.structure.norm_folding import normalises

_NORM, _ACTIVATION = "one convolution and batch norm", "one convolution and activation"
_FORWARDS = {nn.ReLU: nn.ReLU.forward, nn.Hardtanh: nn.Hardtanh.forward, nn.ReLU6: nn.ReLU6.forward}


def taken_before(model: nn.Module) -> list[Change]:
    """What convolutions have taken over in earlier calls: the norm and the activation of each, in order."""
    paths = {module: path for path, module in model.named_modules()}
    changes: list[Change] = []
    for module, path in paths.items():
        if not isinstance(module, QuantizedConvolution) or (epilogue := module.epilogue) is None:
            continue
        for *_, behind in epilogue.behind:
            if behind in paths and isinstance(vars(behind).get("forward"), DoneBefore):
                what = _NORM if behind is epilogue.norm else _ACTIVATION
                changes.append(Change(what=what, modules=(path, paths[behind])))
    return changes


def folded(model: nn.Module, inputs: Mapping[str, Any]) -> list[Step]:
    """Let convolutions take over the batch norms that alone read them, as a forward pass with ``inputs`` shows.

    Modules with hooks are left alone.
    """
    steps: list[Step] = []
    if _any_convolution(model):
        for paths in find_followers(model, inputs, _takes_over, lambda norm: normalises(norm) and _as_written(norm)):
            undo = surgery.take_over(model, *paths)
            steps.append((Change(what=_NORM, modules=paths), undo))
    return steps


def bounded(model: nn.Module, inputs: Mapping[str, Any], normed: Sequence[Change]) -> list[Step]:
    """Let convolutions keep their outputs within the bounds of what alone reads them: a ReLU, ReLU6 or Hardtanh.

    Bounds that the dtype of the layer does not have are left to the activation.

    Args:
        model: The network.
        inputs: Keyword arguments of its forward.
        normed: Convolutions and the norms that they have taken over, which activations may follow.
    """
    if not _any_convolution(model):
        return []
    made = [change.modules for change in normed if change.reason is None and change.what == _NORM]
    norms = {norm: convolution for convolution, norm in made}
    behind = {model.get_submodule(path) for path in norms}
    steps: list[Step] = []
    for before, after in find_followers(
        model,
        inputs,
        lambda module: module in behind or _takes_over(module),
        lambda module: bounds_of(module) is not None,
    ):
        path = norms.get(before, before)
        layer: Any = model.get_submodule(path)
        bounds = bounds_of(model.get_submodule(after))
        if bounds is not None and _has(layer.weight_scale.dtype, bounds):
            undo = surgery.take_over(model, path, after, bounds)
            steps.append((Change(what=_ACTIVATION, modules=(path, after)), undo))
    return steps


def handed(model: nn.Module, inputs: Mapping[str, Any], done: Sequence[Change]) -> list[Step]:
    """Let convolutions write the codes that another one reads, where that one alone reads what they give.

    It has a static input then: its scale is known before. There may be zeros laid around in between, and what was
    taken over.

    Args:
        model: The network.
        inputs: Keyword arguments of its forward.
        done: Convolutions and what they have taken over, in order.
    """
    if not _any_convolution(model):
        return []
    makers: dict[str, str] = {}
    for change in done:
        if change.reason is None:
            makers[change.modules[1]] = makers.get(change.modules[0], change.modules[0])
    ends = {model.get_submodule(path) for path in makers}
    steps: list[Step] = []
    for before, after in find_followers(
        model, inputs, lambda module: module in ends or _product(module), _reads_codes, padded=True
    ):
        paths = makers.get(before, before), after
        epilogue = cast(QuantizedConvolution, model.get_submodule(paths[0])).epilogue
        if epilogue is None or epilogue.reader is None:
            steps.append((Change(what="one convolution and rounding", modules=paths), surgery.hand_over(model, *paths)))
    return steps


def bounds_of(module: Any) -> Bounds | None:
    """Between what an activation keeps its input; ``None`` of a module that does anything else, or is hooked."""
    kind = next((kind for kind in _FORWARDS if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not _FORWARDS[kind] or not _as_written(module):
        return None
    return (0.0, math.inf) if kind is nn.ReLU else (float(module.min_val), float(module.max_val))


def _has(dtype: torch.dtype, bounds: Bounds) -> bool:
    exact = torch.tensor(bounds, dtype=torch.float64)
    return torch.equal(exact.to(dtype).double(), exact)


def _any_convolution(model: nn.Module) -> bool:
    return any(isinstance(module, QuantizedConvolution) for module in model.modules())


def _product(module: nn.Module) -> bool:
    return isinstance(module, QuantizedConvolution) and module.only_multiplies and _as_written(module)


def _takes_over(module: nn.Module) -> bool:
    return _product(module) and module.epilogue is None


def _reads_codes(module: nn.Module) -> bool:
    return _product(module) and cast(QuantizedConvolution, module).input_range() is not None


def _as_written(module: nn.Module) -> bool:
    """Whether nothing looks on or does something else in a call of this very module."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
