"""Finish a block: search for better codes for all its layers at once, by what the block gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from goldstick.algorithms.block_reconstruction import BlockReconstruction, CodeSearch
from goldstick.calibration.held_out import Passes, split
from goldstick.core.edits import Quantize
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import QuantizationError
from goldstick.structure.network import Network, Site

Gradients = Sequence[Tensor | None]


def reconstruct_block(
    network: Network,
    edits: Mapping[str, Quantize],
    weights: Mapping[str, Tensor],
    reconstruction: BlockReconstruction,
    passes: Passes,
    fixed: Collection[str] = (),
) -> dict[str, Quantize]:
    """Better edits for the layers of a block, none where no better ones were found. The block is left as it was.

    The loss of a batch is the mean of (y − y_float)² over the tokens that count. What is decided is judged by that loss
    over the batches that are held out, or over all where none are, in the weights as they will be stored.

    Args:
        network: The network; the block holds the rounded weights of ``edits``.
        edits: Site name → what was decided for it.
        weights: Site name → the float weight it was decided from, [..., out, in].
        reconstruction: The stage.
        passes: The block's forward on each batch, and what the float block gives.
        fixed: Sites whose scales stay what they are, since what stores them holds those of their stage alone.

    Returns:
        Site name → the edit. Where nothing better was found, the edits that were given with a note that says so, of a
        stage that judges by batches it has not learned from; otherwise nothing.

    Raises:
        QuantizationError: The loss is not finite, and the stage does not survive that; there are too few batches to
            hold some out.
    """
    sites = [network.by_name[name] for name in edits]
    sites = [site for site in sites if site.layout.multiplied]
    still = reconstruction.with_fixed_scales()
    searches = {
        site.name: (still if site.name in fixed else reconstruction).search(edits[site.name].tensor, weights[site.name])
        for site in sites
    }
    if not searches:
        return {}
    lesson, judge = split(passes, reconstruction)
    before = judge.loss()
    best, found = before, dict[str, QuantizedTensor]()
    failure = ""
    with _computed(network, sites) as place:
        try:
            for _ in _learning(searches, reconstruction, place, lesson):
                tried = {name: search.decision() for name, search in searches.items()}
                place({name: tensor.dequantize() for name, tensor in tried.items()})
                loss = judge.loss()
                if loss < best:
                    best, found = loss, tried
        except QuantizationError as error:
            if not reconstruction.survives:
                raise
            failure = str(error)
    held = reconstruction.holdout > 0
    notes: dict[str, float | str] = {"block_error": best, "block_error_before": before} if held or found else {}
    if held:
        notes["held_out_batches"] = len(judge.places())
    if failure:
        notes["learning"] = f"stopped: {failure}"
    elif held and not found:
        notes["learning"] = "its start was kept: nothing better on the batches held out"
    if not notes:
        return {}
    return {name: _revised(edits[name], found.get(name), notes) for name in searches}


def _revised(edit: Quantize, tensor: QuantizedTensor | None, notes: Mapping[str, float | str]) -> Quantize:
    if tensor is None:
        return dataclasses.replace(edit, notes={**edit.notes, **notes})
    moved = _moved(edit, tensor.codes)
    return dataclasses.replace(edit, tensor=tensor, notes={**edit.notes, **notes, "codes_moved": moved})


def _learning(
    searches: Mapping[str, CodeSearch],
    reconstruction: BlockReconstruction,
    place: Callable[[Mapping[str, Tensor]], None],
    lesson: Passes,
) -> Iterator[None]:
    """Learn; stops where what was found is to be judged."""
    peaks = [group for search in searches.values() for group in search.groups()]
    parameters: list[Tensor] = [parameter for parameter, _ in peaks]
    optimizer = torch.optim.Adam([{"params": [parameter], "lr": rate} for parameter, rate in peaks], fused=True)
    generator = torch.Generator().manual_seed(reconstruction.seed)
    places, order = lesson.places(), list[int]()
    pauses = {
        round(reconstruction.steps * (number + 1) / reconstruction.judgements)
        for number in range(reconstruction.judgements)
    }
    for step in range(reconstruction.steps):
        share = step / reconstruction.steps
        for group, (_, rate) in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = rate * (1 + math.cos(math.pi * share)) / 2
        for search in searches.values():
            search.anneal(share)
        optimizer.zero_grad()
        chosen: list[tuple[int, int]] = []
        for _ in range(reconstruction.batches):
            order = order or torch.randperm(len(places), generator=generator).tolist()
            chosen.append(places[order.pop()])
        for gradients in _gradients(chosen, lesson, partial(_gradient, searches, parameters, place, lesson, step)):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        optimizer.step()
        if step + 1 in pauses:
            yield


def _gradients(
    chosen: Sequence[tuple[int, int]], lesson: Passes, gradient: Callable[[int], Gradients]
) -> Iterator[Gradients]:
    """Those of some batches, in their order, each from the rank that has it; as many at a time as there are ranks."""
    count = lesson.ranks.count
    for start in range(0, len(chosen), count):
        owners = [owner for owner, _ in chosen[start : start + count]]
        indices = [index for _, index in chosen[start : start + count]]
        yield from lesson.ranks.divided(owners, lambda task, indices=indices: gradient(indices[task]))  # type: ignore[misc]


def _gradient(
    searches: Mapping[str, CodeSearch],
    parameters: Sequence[Tensor],
    place: Callable[[Mapping[str, Tensor]], None],
    lesson: Passes,
    step: int,
    index: int,
) -> Gradients:
    """Of the loss on a batch of this rank."""
    with torch.enable_grad():
        place({name: search.weight() for name, search in searches.items()})
        loss = lesson.errors(index).mean()
        if not math.isfinite(loss.item()):
            raise QuantizationError(
                f"The loss is {loss.item()} in step {step + 1}; lower the block reconstruction's rates."
            )
        # Weights that are one-hot have no gradient; parameters of the block are none of its business.
        gradients: Gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    if not all(gradient is None or bool(torch.isfinite(gradient.sum())) for gradient in gradients):
        raise QuantizationError(f"A gradient is NaN or infinite in step {step + 1}.")
    return gradients


@contextmanager
def _computed(network: Network, sites: Sequence[Site]) -> Iterator[Callable[[Mapping[str, Tensor]], None]]:
    """Inside, layers take the matrices that the function yielded is given, through which gradients flow."""
    modules = {site.name: network.module(site) for site in sites}
    saved = {module: dict(module._parameters) for module in modules.values()}

    def place(matrices: Mapping[str, Tensor]) -> None:
        for site in sites:
            setattr(modules[site.name], site.parameter, site.layout.from_matrix(matrices[site.name], site.shape))

    for site in sites:
        del modules[site.name]._parameters[site.parameter]
    try:
        yield place
    finally:
        for site in sites:
            vars(modules[site.name]).pop(site.parameter, None)
        for module, parameters in saved.items():
            module._parameters.clear()
            module._parameters.update(parameters)


def _moved(edit: Quantize, codes: Tensor) -> float:
    return (codes != edit.tensor.codes).double().mean().item()
