"""Apply a cut: channels leave the layers that make them, the norms behind and the layers that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from goldstick.core.edits import Prune, Slice
from goldstick.core.layout import Layout
from goldstick.core.scatter import ScatteredBatchNorm
from goldstick.errors import StructureError
from goldstick.structure.network import layout_of

#: Attributes by which modules say how many channels they have, by side.
_COUNTS = {
    "output": ("out_channels", "out_features", "num_features", "nf"),
    "input": ("in_channels", "in_features", "nx"),
}


@torch.no_grad()
def apply_cut(model: nn.Module, prune: Prune) -> None:
    """Cut channels out of a model, in place. All shapes are checked before anything is changed.

    Args:
        model: The model.
        prune: What stays. Whether the model computes the same afterwards, but for the cut channels, is the caller's
            affair: :func:`goldstick.structure.pruning.search.find_prunable` finds out.

    Raises:
        StructureError: A slice names a module that the model does not have or that cannot be cut, or does not fit it.
    """
    for part in prune.slices:
        _check(model, part)
    for part in prune.slices:
        _cut(model.get_submodule(part.module), part)
    kept = {part.module: part for part in prune.slices if part.side == "output"}
    for path in prune.scattered:
        norm = model.get_submodule(path)
        assert isinstance(norm, _BatchNorm)  # looked at before anything was cut
        if isinstance(norm, ScatteredBatchNorm):
            continue  # it was cut before; where the rest of its channels belong was cut with them
        parent, _, name = path.rpartition(".")
        new = ScatteredBatchNorm(norm, kept[path].kept, kept[path].width)
        setattr(model.get_submodule(parent), name, new)


def restore_scattered(model: nn.Module, prunes: Sequence[Prune]) -> None:
    """Tell the batch norms that give zeros in the place of what was cut anew where their channels belong.

    A model that is cut on the meta device and filled from a checkpoint has lost these numbers, which no file holds.
    """
    places: dict[str, Tensor] = {}
    for prune in prunes:
        kept = {part.module: part.kept for part in prune.slices if part.side == "output"}
        for path in prune.scattered:
            left = torch.tensor(kept[path])  # of the channels that an earlier cut left
            places[path] = places[path][left] if path in places else left
    for path, place in places.items():
        norm = model.get_submodule(path)
        norm.kept = place.to(norm.get_buffer("kept").device)


def prune_from_dict(value: object) -> Prune:
    """A cut from its plain form in a checkpoint.

    Raises:
        StructureError: It is none.
    """
    try:
        assert isinstance(value, dict)
        slices = tuple(
            Slice(
                module=str(one["module"]),
                side=one["side"],
                kept=tuple(int(index) for index in one["kept"]),
                width=int(one["width"]),
            )
            for one in value["slices"]
        )
        return Prune(slices=slices, scattered=tuple(str(path) for path in value["scattered"]))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise StructureError("The checkpoint's account of what was cut out of its model makes no sense.") from error


def channel_count(module: nn.Module, side: str) -> int | None:
    """How many channels a module puts out or reads, or ``None`` where it is of a kind that cannot be cut."""
    if isinstance(module, _BatchNorm):
        return module.num_features if side == "output" else None
    layout = (
        layout_of(module, "weight", weight) if isinstance(weight := getattr(module, "weight", None), Tensor) else None
    )
    if layout not in (Layout.LINEAR, Layout.TRANSPOSED, Layout.CONVOLUTION) or getattr(module, "groups", 1) != 1:
        return None
    assert isinstance(weight, Tensor)
    axis = 0 if (side == "output") is (layout is not Layout.TRANSPOSED) else 1
    return weight.shape[axis]


def _check(model: nn.Module, part: Slice) -> None:
    try:
        module = model.get_submodule(part.module)
    except AttributeError as error:
        raise StructureError(f"Channels of {part.module} were to be cut, and the model has no such module.") from error
    width = channel_count(module, part.side)
    if width is None:
        raise StructureError(f"{part.module} ({type(module).__name__}) is of a kind of which no channels can be cut.")
    ascending = all(first < second for first, second in zip(part.kept, part.kept[1:], strict=False))
    if width != part.width or not part.kept or not ascending or part.kept[0] < 0 or part.kept[-1] >= width:
        raise StructureError(
            f"{part.module} has {width} channels on its {part.side} side, and the cut is one of {part.width} channels."
        )


def _cut(module: nn.Module, part: Slice) -> None:
    chosen = torch.tensor(part.kept)
    if isinstance(module, _BatchNorm):
        for store in (module._parameters, module._buffers):
            for name, value in store.items():
                if value is not None and value.ndim == 1:
                    _set(store, name, value, 0, chosen)
    else:
        weight = module.get_parameter("weight")
        transposed = layout_of(module, "weight", weight) is Layout.TRANSPOSED
        _set(module._parameters, "weight", weight, 0 if (part.side == "output") is not transposed else 1, chosen)
        bias = module._parameters.get("bias")
        if bias is not None and part.side == "output":
            _set(module._parameters, "bias", bias, 0, chosen)
    for name in _COUNTS[part.side]:
        if hasattr(module, name):
            setattr(module, name, len(part.kept))


def _set(store: Any, name: str, value: Tensor, axis: int, chosen: Tensor) -> None:
    new = value.index_select(axis, chosen.to(value.device)).contiguous()
    store[name] = nn.Parameter(new, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else new
