"""The sweep: one pass over the blocks for every stage of a recipe that looks at data.

For each block, the batches' forward passes stop before each input group; the observer sees the inputs, the stages
decide, the weights are replaced, and the batches go on through them. So every group is solved on the outputs of
the groups already quantized.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.calibration.absorbers import Absorbers, small
from goldstick.calibration.arguments import BlockCall, block_calls
from goldstick.calibration.block import BlockCalibration, calibrate
from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.calibration.groups import is_fused
from goldstick.calibration.kv_ranges import KVRecorder, with_cache
from goldstick.calibration.original import Original, original_block
from goldstick.calibration.task import Work
from goldstick.core.progress import Progress
from goldstick.errors import StructureError
from goldstick.structure.findings import FoldPair
from goldstick.structure.network import Network
from goldstick.structure.trace import evaluating, tensors_in

Batches = Sequence[Mapping[str, Tensor]]
Calls = Sequence[Mapping[str, BlockCall]]


def sweep(
    network: Network,
    work: Work,
    batches: Batches,
    progress: Progress,
    recorder: KVRecorder | None = None,
    original: nn.Module | None = None,
) -> None:
    """Do the work of the calibrated stages, block by block, in place.

    Args:
        network: The network, in memory.
        work: What to do. Sites outside the blocks come last, in passes through the whole model.
        batches: Keyword arguments of the model's forward; an ``attention_mask`` says which tokens count.
        progress: Told how many blocks are done.
        recorder: Sees the keys and values of every block that is given a cache.
        original: The model before anything was rounded, for asymmetric stages; left as it is. If one is needed and
            none given, the network as it is now is copied.

    Raises:
        StructureError: No layer of a block was reached.
    """
    model = network.model
    prepare_experts(network, work)
    floats = (original or copy.deepcopy(model)) if work.asymmetric else None
    if floats is not None:
        prepare_experts(Network(floats), work)
    with evaluating(model), evaluating(floats or model), torch.no_grad():
        chains = find_chains(network, work, batches[0], every=recorder is not None)
        total = sum(len(chain) for chain in chains)
        done = 0
        for chain in chains:
            hidden, calls = starts(model, chain, batches)
            float_hidden, float_calls = starts(floats, chain, batches) if floats is not None else ([], [])
            absorbers = find_absorbers(network, chain, batches[0]) if work.balancing else None
            for block in chain:
                progress(f"calibrating {block}", done, total)
                runs = block_runs(model, block, calls, hidden, recorder.pass_cache if recorder else None)
                pairs: Sequence[FoldPair] = absorbers.of(block) if absorbers else ()
                masks, beside = masks_of(batches), _copy_of(floats, block, float_calls, float_hidden)
                halves = [model.get_submodule(block), *([beside.module] if beside is not None else [])]
                with multiplying_in_float32(*halves):
                    inside = work.within(block)
                    calibration = BlockCalibration(network, inside, runs, masks, pairs=pairs, original=beside)
                    hidden = calibrate(calibration)
                    float_hidden = list(calibration.original_outputs())
                if recorder is not None:
                    recorder.settle()
                done += 1
        done_blocks = {block for chain in chains for block in chain}
        rest = {name: task for name, task in work.tasks.items() if task.site.block not in done_blocks}
        if rest and work.finisher is not None and any(task.site.block is not None for task in rest.values()):
            raise StructureError(
                f"{work.finisher.name} goes from block to block, and the blocks of this model do not feed one another."
            )
        if rest:
            runs = _whole_runs(model, batches)
            beside = Original(module=floats, path="", runs=_whole_runs(floats, batches)) if floats is not None else None
            left = dataclasses.replace(work, tasks=rest, finisher=None)
            calibrate(BlockCalibration(network, left, runs, masks_of(batches), original=beside))
    progress("calibrating", total, total)


def prepare_experts(network: Network, work: Work) -> None:
    """Let the model take experts one at a time where they are to be calibrated, so that each can be listened to."""
    if any(is_fused(task.site) for task in work.tasks.values()):
        surgery.index_experts_one_by_one(network.model)


def find_chains(network: Network, work: Work, batch: Mapping[str, Tensor], *, every: bool = False) -> list[list[str]]:
    """Blocks that feed one another and have something to do; those of other models are left to one whole pass.

    Args:
        network: The network.
        work: What there is to do.
        batch: A batch to try them with.
        every: Whether blocks without work count, too.
    """
    lists: dict[str, list[str]] = {}
    for block in network.blocks:
        lists.setdefault(block.rpartition(".")[0], []).append(block)
    chains = []
    for chain in lists.values():
        if every or any(task.site.block in chain for task in work.tasks.values()):
            try:
                block_calls(network.model, chain, small(batch))
            except StructureError:
                continue
            chains.append(chain)
    return chains


def starts(model: nn.Module, chain: Sequence[str], batches: Batches) -> tuple[list[Tensor], Calls]:
    """The first block's hidden states, and every block's other arguments, for all batches."""
    found: list[tuple[Tensor, dict[str, BlockCall]]] = []
    first: list[Tensor] = []  # arguments of the first batch: most are the same for all
    for batch in batches:
        known = list(first)
        bare = bool(found) and found[0][1][chain[0]].rest is None
        found.append(block_calls(model, chain, batch, known, bare=bare))
        first = first or known
    overwrites = any(calls[chain[0]].overwrites for _, calls in found)  # which blocks that do not run do not show
    every = [
        {path: dataclasses.replace(call, overwrites=overwrites) for path, call in each.items()} for _, each in found
    ]
    return [hidden for hidden, _ in found], every


def find_absorbers(network: Network, chain: Sequence[str], batch: Mapping[str, Tensor]) -> Absorbers:
    """What can take the scales of the blocks of a chain; the weights of its first block are in memory."""
    return Absorbers(network, *block_calls(network.model, chain, small(batch)))


def block_runs(
    model: nn.Module, block: str, calls: Calls, hidden: Sequence[Tensor], cache: Callable[[int], Any] | None
) -> list[Callable[[], Tensor]]:
    """A block's forward on each batch.

    Args:
        model: The model.
        block: Path of the block.
        calls: Every block's other arguments, for each batch.
        hidden: The hidden states, batch by batch; indexed when a pass begins, so they may lie on disk.
        cache: Gives a batch's pass its cache, where the model gave the block one; ``None`` for no caches.
    """
    module = model.get_submodule(block)

    def run(index: int) -> Tensor:
        call = calls[index][block]
        if cache is not None:
            call = with_cache(call, cache(index))
        return call.run(module, hidden[index])

    return [partial(run, index) for index in range(len(calls))]


def masks_of(batches: Batches) -> list[Tensor | None]:
    """Which tokens of each batch count."""
    return [batch.get("attention_mask") for batch in batches]


def _copy_of(floats: nn.Module | None, block: str, calls: Calls, hidden: Sequence[Tensor]) -> Original | None:
    return None if floats is None else original_block(floats.get_submodule(block), block, calls, hidden)


def _whole_runs(model: nn.Module, batches: Batches) -> list[Callable[[], Tensor]]:
    return [partial(_last_output, model, batch) for batch in batches]


def _last_output(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    output = model(**batch)
    return next(tensors_in(output))
