"""Find out which layers share an input, and which producers can absorb a per-channel scale: by trying.

Nothing here knows a model family. See docs/structure.md for what was found on some twenty of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from goldstick.errors import StructureError
from goldstick.structure.network import Network, Site
from goldstick.structure.overrides import EXPERT_OUTPUT_PARAMETERS
from goldstick.structure.probe.findings import BlockStructure, FoldPair, InputGroup
from goldstick.structure.probe.fold import Producer, find_producer, input_channels
from goldstick.structure.probe.trial import Trial
from goldstick.structure.trace import Arguments, Call, capture_block_inputs, trace_block

__all__ = ["BlockStructure", "FoldPair", "InputGroup", "holds_in", "probe_block", "probe_network"]

#: A fold is accepted when the block's output moves by no more than this, relative to its norm ...
TOLERANCE = 1e-5
#: ... and by no more than this part of what multiplying the consumers alone does: a small branch beside a
#: large residual moves the output little however wrong the fold is.
TOLERATED_SHARE = 1e-2
#: Parts of a layer's outputs that are tried one by one: there are as many as heads, at most.
_MOST_PARTS = 128


def probe_network(
    network: Network,
    inputs: Mapping[str, Any],
    *,
    blocks: Literal["first", "all"] = "first",
    seed: int = 0,
    most_trials: int | None = None,
) -> dict[str, BlockStructure]:
    """Probe the blocks of a network; path of each block → what was found.

    Args:
        network: The model, in memory or on the meta device; not changed.
        inputs: Keyword arguments for its forward; some dozens of tokens are enough.
        blocks: ``first`` probes the first of every kind of block (same layers, same shapes) and says the
            same of its likes; ``all`` probes each.
        seed: Seed of the random scales.
        most_trials: Runs of a block after which the folds of further groups are not tried; they are listed.
    """
    found: dict[str, BlockStructure] = {}
    first_of: dict[object, str] = {}
    last_inputs: dict[str, tuple[str, Arguments]] = {}
    for block in network.blocks:
        first = first_of.setdefault(block_signature(network, block), block)
        if blocks == "first" and first != block:
            found[block] = found[first].moved_to(block)
            continue
        siblings = block.rpartition(".")[0]
        borrowed = None
        try:
            given = capture_block_inputs(network.model, block, inputs, seed=seed)
        except StructureError as error:
            # On the meta device an earlier block may not run (routing needs numbers): its inputs do as well.
            if siblings not in last_inputs:
                found[block] = BlockStructure(block=block, problem=str(error))
                continue
            borrowed, given = last_inputs[siblings]
        last_inputs[siblings] = borrowed or block, given
        sites = [site for site in network.sites if site.block == block]
        structure = probe_block(network.model.get_submodule(block), sites, *given, seed=seed, most_trials=most_trials)
        found[block] = replace(structure, block=block, inputs_of=borrowed)
    return found


def probe_block(
    block: nn.Module,
    sites: Sequence[Site],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    seed: int = 0,
    most_trials: int | None = None,
) -> BlockStructure:
    """Try every fold that the widths of a block's layers allow; keep those that leave its output unchanged.

    On a float32 copy: s is log-uniform in [1/2, 2]; a candidate producer's channels are divided by s, the
    columns of the whole input group multiplied by it, and the block runs once. Candidates run before the
    group and are tried nearest first. Whatever else reads the producer's output (a residual, a router, a
    layer that is no site) makes the output move, and the fold is refused. A block on the meta device is given
    random weights first.

    Args:
        block: The block; not changed.
        sites: The network's sites in it.
        args: Its positional arguments, from :func:`~goldstick.structure.trace.capture_block_inputs`.
        kwargs: Its keyword arguments.
        seed: Seed of the random scales.
        most_trials: Runs after which no further group is tried.

    Returns:
        The findings; with ``problem`` set, and without groups, where the block cannot be run.
    """
    started = time.perf_counter()
    path = next((site.block for site in sites if site.block), "")
    try:
        with torch.inference_mode(False), torch.no_grad():
            found = _probe(Trial(block, path, sites, args, kwargs, seed), most_trials)
    except Exception as error:  # any code of the model may fail, in any way; the report says so
        found = BlockStructure(block=path, problem=f"The block cannot be probed: {type(error).__name__}: {error}")
    return replace(found, seconds=time.perf_counter() - started)


def holds_in(
    block: nn.Module,
    sites: Sequence[Site],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: BlockStructure,
    *,
    seed: int = 0,
) -> bool:
    """Whether what was found in a block of the same layers and shapes is true of this one, too.

    A forward may go another way in each of several blocks that hold the same layers.

    Args:
        block: The block; not changed.
        sites: The network's sites in it.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        found: The findings, under the names of this block.
        seed: Seed of the random scales.
    """
    path = next((site.block for site in sites if site.block), "")
    try:
        with torch.inference_mode(False), torch.no_grad():
            trial = Trial(block, path, sites, args, kwargs, seed)
            groups = _find_groups(trial, trace_block(trial.block, trial.args, trial.kwargs))
            if [tuple(site.name for site in group.sites) for group in groups] != [one.sites for one in found.groups]:
                return False
            by_name = {site.name: site for site in trial.sites}
            for pair in found.folds:
                readers = [by_name[name] for name in pair.consumers]
                scale, effect = _random_scale(trial, readers)
                if not _stays(trial.error(readers, scale, pair.fold(scale)), effect):
                    return False
            return True
    except Exception:  # any code of the model may fail, in any way
        return False


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Sites with the same input of ``channels`` channels, and how many calls precede them.

    Where the sites are the inner ones of fused experts, the call of the experts counts as preceding.
    """

    sites: tuple[Site, ...]
    channels: int
    preceding: int


def _probe(trial: Trial, most_trials: int | None) -> BlockStructure:
    calls = trace_block(trial.block, trial.args, trial.kwargs)
    groups = _find_groups(trial, calls)
    ran = {site.name for group in groups for site in group.sites}
    idle = [site for site in trial.sites if site.name not in ran]
    # An idle layer may read the same tensor in another run: folding into the others would then be wrong.
    idle_widths = {input_channels(trial.module(site.module), site) for site in idle}
    folds: list[FoldPair] = []
    rejected: list[float] = []
    untried: list[str] = []
    for group in groups:
        if most_trials is not None and trial.runs > most_trials:
            untried.extend(site.name for site in group.sites)
        elif group.channels not in idle_widths:
            accepted, refused = _try_folds(trial, group, calls)
            folds.extend(accepted)
            rejected.extend(refused)
    return BlockStructure(
        block=trial.path,
        groups=tuple(
            InputGroup(sites=tuple(site.name for site in group.sites), in_features=group.channels) for group in groups
        ),
        folds=tuple(folds),
        worst_accepted=max((pair.error for pair in folds), default=None),
        best_rejected=min(rejected, default=None),
        idle=tuple(site.name for site in idle),
        untried=tuple(untried),
    )


def _find_groups(trial: Trial, calls: Sequence[Call]) -> list[_Group]:
    first: dict[str, int] = {}
    keys: dict[str, list[object]] = {}
    for index, call in enumerate(calls):
        path = trial.absolute(call.module)
        first.setdefault(path, index)
        keys.setdefault(path, []).append(call.key)
    members: dict[object, list[Site]] = {}
    for site in sorted((site for site in trial.sites if site.module in first), key=lambda site: first[site.module]):
        inner = site.module if site.parameter in EXPERT_OUTPUT_PARAMETERS else None
        channels = input_channels(trial.module(site.module), site)
        members.setdefault((inner, channels, tuple(keys[site.module])), []).append(site)
    return [
        _Group(
            sites=tuple(sites),
            channels=input_channels(trial.module(sites[0].module), sites[0]),
            preceding=first[sites[0].module] + (sites[0].parameter in EXPERT_OUTPUT_PARAMETERS),
        )
        for sites in members.values()
    ]


def _try_folds(trial: Trial, group: _Group, calls: Sequence[Call]) -> tuple[list[FoldPair], list[float]]:
    scale, effect = _random_scale(trial, group.sites)
    accepted: dict[str, FoldPair] = {}
    rejected: list[float] = []
    for candidate in _candidates(trial, group, calls):
        if candidate.kind in accepted:
            continue
        error = trial.error(group.sites, scale, candidate.fold(scale))
        if _stays(error, effect):
            accepted[candidate.kind] = replace(candidate, error=error)
        else:
            rejected.append(error)
    return list(accepted.values()), rejected


def _random_scale(trial: Trial, sites: Sequence[Site]) -> tuple[Tensor, float]:
    """A scale for what sites read, and how far the output moves when their columns alone are multiplied by it."""
    channels = input_channels(trial.module(sites[0].module), sites[0])
    scale = torch.exp2(torch.rand(channels, dtype=torch.float32, generator=trial.generator) * 2 - 1)
    return scale, trial.error(sites, scale, None)


def _stays(error: float, effect: float) -> bool:
    """Whether an output that moves so far with a fold, and so far with its consumers alone, is as it was."""
    return error <= TOLERANCE and error <= TOLERATED_SHARE * effect


def _candidates(trial: Trial, group: _Group, calls: Sequence[Call]) -> Iterator[FoldPair]:
    """Every producer of the right width that ran before the group, nearest first."""
    fused: dict[str, list[str]] = {}
    for site in trial.sites:
        if site.parameter != "weight":
            fused.setdefault(site.module, []).append(site.name)
    own = {site.name for site in group.sites}
    seen: set[str] = set()
    for call in reversed(calls[: group.preceding]):
        path = trial.absolute(call.module)
        for name in fused.get(path, [path]):
            producer = None if name in seen | own else _producer(trial, name)
            seen.add(name)
            for first, unit_offset in _channels(producer, group.channels) if producer else ():
                yield FoldPair(
                    producer=name,
                    consumers=tuple(site.name for site in group.sites),
                    kind="norm" if producer and producer.layout is None else "linear",
                    unit_offset=unit_offset,
                    first_channel=first,
                    error=float("inf"),
                )


def _producer(trial: Trial, name: str) -> Producer | None:
    try:
        return find_producer(trial.module, name)
    except StructureError:
        return None


def _channels(producer: Producer, wanted: int) -> list[tuple[int, bool]]:
    """(first channel, unit offset) to try: all of a norm; of a linear layer the last part, others if not too many."""
    if producer.layout is None:
        return [(0, False), (0, True)] if producer.channels == wanted else []
    spare = producer.channels - wanted
    whole = producer.channels % wanted == 0 and producer.channels <= _MOST_PARTS * wanted
    parts = set(range(0, spare + 1, wanted)) if whole else set()
    return [(first, False) for first in sorted(parts | {spare}, reverse=True) if spare >= 0]


def block_signature(network: Network, block: str) -> object:
    """Equal for two blocks that hold the same layers of the same shapes."""
    module = network.model.get_submodule(block)
    layers = tuple((path, type(layer)) for path, layer in module.named_modules())
    return layers, tuple((name, parameter.shape) for name, parameter in module.named_parameters())
