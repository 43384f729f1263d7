"""Finish a block: search for better codes for all its layers at once, by what the block gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from goldstick.algorithms.block_reconstruction import BlockReconstruction, CodeSearch
from goldstick.core.edits import Quantize
from goldstick.core.ranks import Ranks
from goldstick.errors import QuantizationError
from goldstick.structure.network import Network, Site

Runs = Sequence[Callable[[], Tensor]]


def reconstruct_block(
    network: Network,
    edits: Mapping[str, Quantize],
    weights: Mapping[str, Tensor],
    reconstruction: BlockReconstruction,
    runs: Runs,
    targets: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    ranks: Ranks | None = None,
) -> dict[str, Quantize]:
    """Better edits for the layers of a block, none where no better ones were found. The block is left as it was.

    The loss of a batch is the mean of (y − y_float)² over the tokens that count. What is decided is judged by that loss
    over all batches, in the weights as they will be stored.

    Args:
        network: The network; the block holds the rounded weights of ``edits``.
        edits: Site name → what was decided for it.
        weights: Site name → the float weight it was decided from, [..., out, in].
        reconstruction: The stage.
        runs: The block's forward on each batch.
        targets: What the float block gives for each batch.
        masks: Which tokens of each batch count, [rows, tokens]; ``None`` for all.
        ranks: Who has further batches: a step is taken on one batch, by the rank that has it, and its gradient is
            everybody's.

    Raises:
        QuantizationError: The loss is not finite.
    """
    sites = [network.by_name[name] for name in edits]
    sites = [site for site in sites if site.layout.multiplied]
    searches = {site.name: reconstruction.search(edits[site.name].tensor, weights[site.name]) for site in sites}
    if not searches:
        return {}
    ranks = ranks or Ranks()
    before = _loss(runs, targets, masks, ranks)
    with _computed(network, sites) as place:
        _learn(searches, reconstruction, place, runs, targets, masks, ranks)
        found = {name: search.decision() for name, search in searches.items()}
        place({name: tensor.dequantize() for name, tensor in found.items()})
        after = _loss(runs, targets, masks, ranks)
    if not after < before:
        return {}
    notes = {"block_error": after, "block_error_before": before}
    return {
        name: dataclasses.replace(
            edits[name],
            tensor=tensor,
            notes={**edits[name].notes, **notes, "codes_moved": _moved(edits[name], tensor.codes)},
        )
        for name, tensor in found.items()
    }


def _learn(
    searches: Mapping[str, CodeSearch],
    reconstruction: BlockReconstruction,
    place: Callable[[Mapping[str, Tensor]], None],
    runs: Runs,
    targets: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    ranks: Ranks,
) -> None:
    owned = [(owner, index) for owner, count in enumerate(ranks.gather(len(runs))) for index in range(count)]
    peaks = [group for search in searches.values() for group in search.groups()]
    optimizer = torch.optim.Adam([{"params": [parameter], "lr": rate} for parameter, rate in peaks])
    generator = torch.Generator().manual_seed(reconstruction.seed)
    order: list[int] = []
    with torch.enable_grad():
        for step in range(reconstruction.steps):
            share = step / reconstruction.steps
            for group, (_, rate) in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = rate * (1 + math.cos(math.pi * share)) / 2
            order = order or torch.randperm(len(owned), generator=generator).tolist()
            owner, index = owned[order.pop()]
            for search in searches.values():
                search.anneal(share)
            place({name: search.weight() for name, search in searches.items()})
            found: tuple[float, Sequence[Tensor | None]] = 0.0, ()
            if owner == ranks.rank:
                loss = _errors(runs[index](), targets[index], masks[index]).mean()
                # Weights that are one-hot have no gradient; parameters of the block are none of its business.
                found = loss.item(), torch.autograd.grad(loss, [one for one, _ in peaks], allow_unused=True)
            value, gradients = ranks.of(found, owner)
            if not math.isfinite(value):
                raise QuantizationError(
                    f"The loss is {value} in step {step + 1}; lower the block reconstruction's rates."
                )
            for (parameter, _), gradient in zip(peaks, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()


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


def _errors(output: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """(y − y_float)² of the tokens that count, float32."""
    found = (output.float() - target.float()).square()
    if mask is None or mask.shape != found.shape[:2]:
        return found
    return found[mask.bool()]


@torch.no_grad()
def _loss(runs: Runs, targets: Sequence[Tensor], masks: Sequence[Tensor | None], ranks: Ranks) -> float:
    sums: list[tuple[float, int]] = []
    for run, target, mask in zip(runs, targets, masks, strict=True):
        errors = _errors(run(), target, mask)
        sums.append((float(errors.double().sum()), errors.numel()))
    total, count = 0.0, 0
    for each in ranks.gather(sums):  # batch by batch, in one order, whoever has them
        for further, numbers in each:
            total, count = total + further, count + numbers
    return total / count


def _moved(edit: Quantize, codes: Tensor) -> float:
    return (codes != edit.tensor.codes).double().mean().item()
