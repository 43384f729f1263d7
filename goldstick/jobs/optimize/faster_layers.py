"""Quantized linear layers that run as one multiplication, and weights laid out for the processor: each tried alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.calibration.memory_budget import default_budget, used_memory
from goldstick.jobs.optimize.optimization import Change, Step, nothing
from goldstick.kernels.prepared import PreparedLinear
from goldstick.nn import QuantizedLinear
from goldstick.nn.fused.fused_linears import obstacle
from goldstick.structure.trace import trace_block


def share_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> list[Step]:
    """Stack the weights of layers that are given the same input, as a forward pass with ``inputs`` shows.

    Those that were stacked in an earlier call stay so.
    """
    steps: list[Step] = []
    for paths in _with_the_same_input(model, inputs):
        parts = [layer for path in paths if isinstance(layer := model.get_submodule(path), QuantizedLinear)]
        if parts[0].shared is not None and set(parts[0].shared.parts) == set(parts):
            continue
        reason, undo = obstacle(parts), nothing
        if reason is None:
            expected = _outputs(parts)
            shared = surgery.fuse_linears(model, paths)
            undo = shared.separate
            if not _equal(expected, _outputs(parts)):
                undo()
                reason = "together they do not give the same bits"
        steps.append((Change(what="one multiplication", modules=tuple(paths), reason=reason), undo))
    return steps


def interleaved(model: nn.Module) -> list[Step]:
    """Let linear layers read copies of their weights, those that share an input one of all their rows.

    No layer does where the copies would take most of the memory that is left. Those that do already are passed over.
    """
    steps: list[Step] = []
    layers = [(paths, layer) for paths, layer in _linears(model) if not layer.prepared.interleaved]
    needed = sum(_copied_bytes(layer) for _, layer in layers)
    if not _has_room(needed):
        reason = f"the copies would take {needed / 1e9:.1f} GB, which is most of the memory that is left"
        return [(Change(what="interleaved weight", modules=paths, reason=reason), nothing) for paths, _ in layers]
    for paths, layer in layers:
        prepared, change = layer.prepared, Change(what="interleaved weight", modules=paths)
        expected = _outputs([layer])
        prepared.interleaved = True
        found = _outputs([layer])

        def undo(prepared: PreparedLinear = prepared) -> None:
            prepared.interleaved = False

        if not prepared.reads_copy:
            change = replace(change, reason="no kernel here reads it so")
        elif not _equal(expected, found):
            change = replace(change, reason="the copy does not give the same bits")
        if change.reason is not None:
            undo()
        steps.append((change, undo))
    return steps


def _copied_bytes(layer: QuantizedLinear) -> int:
    """Of codes of 4 or 8 bits, and of scales and zeros as floats."""
    zeros = layer.weight_zero_point
    floats = layer.weight_scale.numel() + (0 if zeros is None else zeros.numel())
    return layer.out_features * layer.in_features * (4 if layer.grid.bits <= 4 else 8) // 8 + 4 * floats


def _has_room(needed: int) -> bool:
    try:
        return used_memory() + needed <= default_budget()
    except OSError:  # this system does not say
        return True


def _linears(model: nn.Module) -> Iterator[tuple[tuple[str, ...], QuantizedLinear]]:
    """The layers that are multiplied by, with their paths: those that share an input as one."""
    paths = {layer: path for path, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
    for layer, path in paths.items():
        if layer.shared is None:
            yield (path,), layer
        elif layer is layer.shared.parts[0]:
            for run, whole in zip(layer.shared.runs, layer.shared.wholes(), strict=True):
                yield tuple(paths[part] for part in run), whole


def _with_the_same_input(model: nn.Module, inputs: Mapping[str, Any]) -> list[list[str]]:
    """Paths of quantized linear layers that were given the same tensors, in order of execution."""
    keys: dict[str, list[object]] = {}
    for call in trace_block(model, (), dict(inputs)):
        if isinstance(model.get_submodule(call.module), QuantizedLinear):
            keys.setdefault(call.module, []).append(call.key)
    groups: dict[tuple[object, ...], list[str]] = {}
    for path, received in keys.items():
        groups.setdefault(tuple(received), []).append(path)
    return [paths for paths in groups.values() if len(paths) > 1]


def _outputs(parts: Sequence[QuantizedLinear]) -> list[Tensor]:
    """What layers give on one token and on several."""
    generator = torch.Generator().manual_seed(0)
    first = parts[0]
    given = [torch.randn(tokens, first.in_features, dtype=torch.float32, generator=generator) for tokens in (1, 5)]
    return [part(x) for x in (x.to(first.weight_scale) for x in given) for part in parts]


def _equal(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
