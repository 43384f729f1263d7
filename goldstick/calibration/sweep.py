"""The sweep: one pass over the blocks for every stage of a recipe that looks at data.

For each block, the batches' forward passes stop before each input group; the observer sees the inputs, the stages
decide, the weights are replaced, and the batches go on through them. So every group is solved on the outputs of
the groups already quantized.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.calibration.arguments import block_calls
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.block_loop import Batches, BlockLoop, Calls, calibrate, masks_of, starts
from goldstick.calibration.end_gradients import InMemory, end_gradients
from goldstick.calibration.held_out import apart
from goldstick.calibration.kv_ranges import KVRecorder, noting
from goldstick.calibration.original import Original
from goldstick.calibration.scale_fold_targets import ScaleFoldTargets, small
from goldstick.calibration.shared_state import share_state, shared_state_warning
from goldstick.calibration.task import Work
from goldstick.calibration.wrong_batch import naming_batch
from goldstick.core.progress import Progress
from goldstick.core.references import deep_copy
from goldstick.errors import StructureError
from goldstick.structure.calls import first_call
from goldstick.structure.network import Network
from goldstick.structure.trace import evaluating, keeping_buffers, on_device, tensors_in


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
        original: The model before anything was rounded, for stages that need its inputs; left as it is. Where one does
            and none is given, the network as it is now is copied.

    Raises:
        StructureError: A stage goes from block to block, and the blocks do not feed one another.
    """
    model = network.model
    device = next((one.device for one in model.parameters() if not one.is_meta), torch.device("cpu"))
    batches = apart([on_device(batch, device) for batch in batches], work.holdout, model)
    prepare_experts(network, work)
    floats = (original or deep_copy(model)) if work.needs_float_inputs else None
    if floats is not None:
        prepare_experts(Network(floats), work)
    with evaluating(model), evaluating(floats or model), keeping_buffers(model), torch.no_grad():
        chains = find_chains(network, work, batches[0], every=recorder is not None)
        blocks = [block for chain in chains for block in chain]
        _require_chains(network, work, set(blocks), batches)

        def load(block: str) -> nn.Module | None:
            progress(f"calibrating {block}", blocks.index(block), len(blocks))
            return None if floats is None else floats.get_submodule(block)

        done: set[str] = set()
        together = True
        for chain in chains:
            try:
                states, calls, float_calls = _starts(model, floats, chain, batches)
            except StructureError:  # the first batch reaches these blocks, and another one does not
                continue
            if share_state(model, chain, batches, states[0], calls[0]):
                warnings.warn(shared_state_warning(model), stacklevel=2)
                together = False
                continue
            gradients = {}
            if floats is not None and work.needs_end_gradients:
                first = states[len(batches) :]
                gradients = end_gradients(floats, chain, batches, first, float_calls, InMemory(floats))
            loop = BlockLoop(
                network=network,
                work=work,
                batches=batches,
                calls=calls,
                float_calls=float_calls,
                gradients=gradients,
                fold_targets=find_fold_targets(network, chain, batches[0]) if work.smoothing else None,
                caches=recorder,
                load=load,
            )
            for block in chain:
                states = loop.advance(block, states)
            done.update(chain)
        rest = {name: task for name, task in work.tasks.items() if task.site.block not in done}
        if done != set(blocks):
            _require_chains(network, work, done, batches, sharing=not together)
        if rest:
            runs = _whole_runs(model, batches)
            beside = Original(module=floats, path="", runs=_whole_runs(floats, batches)) if floats is not None else None
            left = dataclasses.replace(work, tasks=rest).alone()
            calibrate(BlockCalibration(network, left, runs, masks_of(batches), original=beside, together=together))
        if recorder is not None:
            _note_caches(recorder, model, [block for block in network.blocks if block not in done], batches)
    progress("calibrating", len(blocks), len(blocks))


def _note_caches(recorder: KVRecorder, model: nn.Module, blocks: Sequence[str], batches: Batches) -> None:
    """Note keys and values of blocks that no chain has run, in passes through the whole model.

    Raises:
        StructureError: No block was given a cache.
    """
    modules = [model.get_submodule(block) for block in blocks]
    for number, run in enumerate(_whole_runs(model, batches) if modules else ()):
        with noting(modules, recorder.pass_cache(number)):
            run()
    recorder.settle()
    if not recorder.ranges:
        raise StructureError(
            f"No block of this {type(model).__name__} was called with a cache, so keys and values cannot be seen. Give "
            "calibration batches in which use_cache is true, or leave the kv_cache stage out."
        )


def prepare_experts(network: Network, work: Work) -> None:
    """Let the model take experts one at a time where they are to be calibrated, so that each can be listened to."""
    if any(task.site.layout.fused for task in work.tasks.values()):
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


def _require_chains(
    network: Network, work: Work, chained: Set[str], batches: Batches, *, sharing: bool = False
) -> None:
    """Refuse a stage that goes from block to block where a batch reaches a block that feeds none, or shares state."""
    if work.reconstruction is None:
        return
    blocks = {task.site.block for task in work.tasks.values()} - chained - {None}
    modules = [network.model.get_submodule(block) for block in sorted(filter(None, blocks))]
    runs = _whole_runs(network.model, batches)
    if modules and any(first_call(modules, run) is not None for run in runs):
        name = work.reconstruction.name
        why = "read what its forward leaves outside their arguments" if sharing else "do not feed one another"
        raise StructureError(
            f"{name} goes from block to block, and the blocks of this model {why}; leave {name} out "
            "(an effort below best does not ask for it)."
        )


def _starts(
    model: nn.Module, floats: nn.Module | None, chain: Sequence[str], batches: Batches
) -> tuple[Sequence[Tensor], Calls, Calls]:
    """The first hidden states, those of the float model behind, and what the blocks of both are called with."""
    states, calls = starts(model, chain, batches)
    float_states, float_calls = starts(floats, chain, batches) if floats is not None else ([], [])
    return states + float_states, calls, float_calls


def find_fold_targets(network: Network, chain: Sequence[str], batch: Mapping[str, Tensor]) -> ScaleFoldTargets:
    """What can take the scales of the blocks of a chain; the weights of its first block are in memory."""
    return ScaleFoldTargets(network, *block_calls(network.model, chain, small(batch)))


def _whole_runs(model: nn.Module, batches: Batches) -> list[Callable[[], Tensor]]:
    return [partial(_last_output, model, batch, place) for place, batch in enumerate(batches, 1)]


def _last_output(model: nn.Module, batch: Mapping[str, Tensor], place: int) -> Tensor:
    with naming_batch(batch, place, f"this {type(model).__name__}"):
        output = model(**batch)
    return _float_of(output)


def _float_of(output: Any) -> Tensor:
    """The first tensor of floats in what a model gives; an empty one where there is none, which calibration of what
    its layers are given does without.
    """
    found = list(tensors_in(output)) or list(tensors_in(getattr(output, "__dict__", {})))
    return next((tensor for tensor in found if tensor.is_floating_point()), torch.empty(0))
