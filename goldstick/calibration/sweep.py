"""The sweep: one pass over the blocks for every calibrated stage of a recipe.

For each block, the batches' forward passes pause before each input group; the stages' observers see the inputs, the
stages decide, the weights are replaced, and the batches go on through them. So every group is solved on the
outputs of the groups already quantized, and each token passes each layer once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms.base import Quantizer
from goldstick.calibration.arguments import BlockCall, block_calls
from goldstick.calibration.experts import listen_to_experts
from goldstick.calibration.input_range import with_input_range
from goldstick.calibration.patches import reading, rows_read_by
from goldstick.calibration.pauses import Arrival, inputs_in_order, run_with_pauses
from goldstick.core.edits import Quantize, SetWeight
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.structure.network import Layout, Network, Site
from goldstick.structure.trace import evaluating, tensors_in


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the sweep has to do at one site.

    Attributes:
        site: The site.
        stage: The stage that acts on it.
        scheme: What it becomes.
    """

    site: Site
    stage: Quantizer
    scheme: Scheme


#: Solves a task from its weight [..., out, in] and its state.
Decide = Callable[[Task, Tensor, Any], Quantize]


def sweep(
    network: Network,
    tasks: Mapping[str, Task],
    batches: Sequence[Mapping[str, Tensor]],
    decide: Decide,
    progress: Callable[[str, int, int], None],
) -> None:
    """Solve every task on what its layer is given, block by block, in place.

    Args:
        network: The network, in memory.
        tasks: Site name → what to do. Those outside the blocks come last, in passes through the whole model.
        batches: Keyword arguments of the model's forward.
        decide: Solves one task from its weight [..., out, in] and its state.
        progress: Told how many blocks are done.

    Raises:
        StructureError: No layer of a block was reached. A single one that was not, such as an expert without tokens,
            is left to its stage, with a state that saw nothing.
    """
    if any(_fused(task.site) for task in tasks.values()):
        surgery.index_experts_one_by_one(network.model)
    with evaluating(network.model), torch.no_grad():
        chains = _chains(network, tasks, batches[0])
        total = sum(len(chain) for chain in chains)
        done = 0
        for chain in chains:
            hidden, calls = _starts(network.model, chain, batches)
            for block in chain:
                progress("calibrating", done, total)
                here = {name: task for name, task in tasks.items() if task.site.block == block}
                passes = [partial(call[block].run, network.model.get_submodule(block)) for call in calls]
                runs = [partial(run, state) for run, state in zip(passes, hidden, strict=True)]
                hidden = _calibrate(network, here, runs, decide)
                done += 1
        whole = {name: task for name, task in tasks.items() if not any(task.site.block in chain for chain in chains)}
        if whole:
            runs = [partial(_last_output, network.model, batch) for batch in batches]
            _calibrate(network, whole, runs, decide)
    progress("calibrating", total, total)


def _chains(network: Network, tasks: Mapping[str, Task], batch: Mapping[str, Tensor]) -> list[list[str]]:
    """Blocks that feed one another and have something to do; those of other models are left to one whole pass."""
    lists: dict[str, list[str]] = {}
    for block in network.blocks:
        lists.setdefault(block.rpartition(".")[0], []).append(block)
    chains = []
    for chain in lists.values():
        if any(task.site.block in chain for task in tasks.values()):
            try:
                block_calls(network.model, chain, batch)
            except StructureError:
                continue
            chains.append(chain)
    return chains


def _starts(
    model: nn.Module, chain: Sequence[str], batches: Sequence[Mapping[str, Tensor]]
) -> tuple[list[Tensor], list[dict[str, BlockCall]]]:
    starts = []
    first: list[Tensor] = []  # arguments of the first batch: most are the same for all
    for batch in batches:
        known = list(first)
        starts.append(block_calls(model, chain, batch, known))
        first = first or known
    return [hidden for hidden, _ in starts], [calls for _, calls in starts]


def _last_output(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    output = model(**batch)
    return next(tensors_in(output))


def _calibrate(
    network: Network,
    tasks: Mapping[str, Task],
    runs: Sequence[Callable[[], Tensor]],
    decide: Decide,
) -> list[Tensor]:
    """Run forward passes together and solve the tasks on the way; returns what the passes give."""
    groups = _input_groups(network, tasks, runs[0])
    edits: list[Quantize] = []

    def solve(number: int, arrivals: list[Arrival]) -> None:
        for edit in _solve_group(network, groups[number], arrivals, decide):
            # The batches are inside the old modules: these go on with the new weights until all have passed.
            surgery.apply(network, [SetWeight(site=edit.site, weight=edit.tensor.dequantize())])
            edits.append(edit)

    modules = [list(dict.fromkeys(network.module(task.site) for task in group)) for group in groups]
    outputs = run_with_pauses(runs, modules, solve)
    if tasks and not edits:
        raise StructureError(f"No calibration batch reached {next(iter(tasks))}; exclude it, or use other data.")
    reached = {edit.site for edit in edits}
    for task in (task for name, task in tasks.items() if name not in reached):  # experts without tokens: it is told so
        state = task.stage.attach(task.site)
        edits.append(with_input_range(decide(task, network.weight(task.site), state), state))
    surgery.apply(network, edits)
    return outputs


def _input_groups(network: Network, tasks: Mapping[str, Task], run: Callable[[], Tensor]) -> list[list[Task]]:
    """Tasks that share an input, in order of execution; fused experts are a group of their own."""
    by_module: dict[nn.Module, list[Task]] = {}
    for task in tasks.values():
        by_module.setdefault(network.module(task.site), []).append(task)
    traced = inputs_in_order(list(by_module), run)
    first = {module: (place, key) for place, (module, key) in reversed([*enumerate(traced)])}
    groups: dict[object, tuple[float, list[Task]]] = {}
    latest = -1.0
    for module, members in by_module.items():
        # Experts that only other batches reach come after all that was registered before them. Any other order would
        # let a group be solved while some batches have yet to come to it.
        place, key = first.get(module, (latest + 0.5, module))
        latest = max(latest, place) if module in first else latest
        alone = module not in first or _fused(members[0].site)
        earlier, together = groups.get(name := module if alone else (key, reading(module)), (place, []))
        groups[name] = min(earlier, place), together + members
    return [members for _, members in sorted(groups.values(), key=lambda group: group[0])]


def _solve_group(
    network: Network,
    group: Sequence[Task],
    arrivals: Sequence[Arrival],
    decide: Decide,
) -> list[Quantize]:
    if _fused(group[0].site):
        return [_solve_experts(network, task, arrivals, decide) for task in group]
    states: dict[int, Any] = {}
    edits = []
    for task in group:
        if id(task.stage) not in states:  # one statistic for all that share the input
            state = states[id(task.stage)] = task.stage.attach(task.site)
            for arrival in arrivals:
                rows = rows_read_by(arrival.module, arrival.tensor)
                if rows is not None:
                    state.observe(rows)
        state = states[id(task.stage)]
        edits.append(with_input_range(decide(task, network.weight(task.site), state), state))
    return edits


def _solve_experts(
    network: Network,
    task: Task,
    arrivals: Sequence[Arrival],
    decide: Decide,
) -> Quantize:
    state = task.stage.attach(task.site)
    parameter = getattr(network.module(task.site), task.site.parameter)
    listen_to_experts(parameter, arrivals, lambda expert, x: state[expert].observe(x))
    edit = decide(task, network.weight(task.site), state)
    # What comes next in the same module is to see this one's rounded weights.
    surgery.apply(network, [SetWeight(site=edit.site, weight=edit.tensor.dequantize())])
    return edit


def _fused(site: Site) -> bool:
    return site.layout in (Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS)
