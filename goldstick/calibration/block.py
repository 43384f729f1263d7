"""Calibrate one block: solve its input groups in the order they run, each on the outputs of those solved before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from goldstick import surgery
from goldstick.algorithms.base import Guide
from goldstick.calibration.bias_correction import correct_bias, has_bias, mean_output
from goldstick.calibration.block_finish import BlockFinish
from goldstick.calibration.dividing import by_all_ranks, decided, groups_of_ranks, owners_of, share_rows
from goldstick.calibration.experts import observe_experts
from goldstick.calibration.held_out import LearnedPasses
from goldstick.calibration.input_factors import InputMultipliers
from goldstick.calibration.input_range import range_notes, with_input_range
from goldstick.calibration.observing import (
    Rows,
    chooses_tokens,
    observe_cross_covariance,
    observe_group,
    rows_of_batches,
)
from goldstick.calibration.original import Original, OriginalPasses
from goldstick.calibration.packed_edits import PackedEdits
from goldstick.calibration.passes import Passes, PausedPasses, RepeatedPasses
from goldstick.calibration.read_elsewhere import read_elsewhere
from goldstick.calibration.smoothing import smooth_group
from goldstick.calibration.starved_experts import are_starved, shown_every_token
from goldstick.calibration.task import Assignment, Work
from goldstick.calibration.unreached import note_unreached
from goldstick.calibration.weighted_inputs import TokenWeights, objective_of, weighted_groups, weights_in_block
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.edits import Quantize, SetWeight
from goldstick.core.freed_memory import make_room
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.token_mask import TokenMask
from goldstick.structure.network import Network
from goldstick.structure.probe.findings import FoldPair


class BlockCalibration:
    """The calibration of one block (or of a whole model as one block), in place.

    Use it in this order: ``solve``, which leaves the block with rounded float weights; ``outputs``, what the block
    then gives for each batch; ``finish``, which puts the packed layers in place.

    Args:
        network: The network; the block's weights are in memory.
        work: What to do in the block.
        runs: The block's forward on each batch.
        masks: Which tokens of each batch count.
        pairs: What can absorb the scale of which input group; from the structure probe.
        together: Whether all batches may wait together; see :mod:`goldstick.calibration.passes`.
        original: The float block and its passes, where a stage needs its inputs.
        look: A forward that reaches the layers in the same order, such as a shorter one; the first run where ``None``.
        gradients: Of the float model's loss, at what the block gives for each batch; ``None`` where no stage asks.
    """

    def __init__(
        self,
        network: Network,
        work: Work,
        runs: Sequence[Callable[[], Tensor]],
        masks: Sequence[TokenMask],
        *,
        pairs: Sequence[FoldPair] = (),
        together: bool = True,
        original: Original | None = None,
        look: Callable[[], Tensor] | None = None,
        gradients: Sequence[Tensor] | None = None,
    ) -> None:
        self._network, self._work, self._masks, self._pairs = network, work, masks, pairs
        products = {name: task for name, task in work.tasks.items() if task.site.product}
        self._ranks = work.ranks
        self._groups, again = groups_of_ranks(network, products, work.ranks, look or (runs[0] if runs else None))
        self._called_again = {task.site.name for number in again for task in self._groups[number]}
        modules = [list(dict.fromkeys(network.module(task.site) for task in group)) for group in self._groups]
        kind = partial(PausedPasses, back=network.before_reading) if together else RepeatedPasses
        self._passes: Passes = kind(runs, modules, again, work.ranks)
        self._finish = BlockFinish(network, work, runs, masks, gradients)
        if self._finish.learned < len(runs):  # layers are not fitted to what judges them
            self._passes = LearnedPasses(self._passes, self._finish.learned)
        self._beside: OriginalPasses | None = None
        self._token_weights: dict[Guide, dict[str, TokenWeights]] = {}
        if original is not None:
            self._token_weights = weights_in_block(
                work.guided, original, gradients, masks, work.ranks, self._finish.learned
            )
            sites = [[task.site for task in group] for group in self._groups]
            copies = [list(dict.fromkeys(original.counterpart(site.module) for site in group)) for group in sites]
            self._beside = OriginalPasses(original, copies, kind, ranks=work.ranks)
        self._edits = PackedEdits()
        self._untouched: set[str] = set()
        self._runs = runs
        self._multipliers = InputMultipliers(network, read_elsewhere(network, work, look or next(iter(runs), None)))
        self._starved: list[tuple[Sequence[Assignment], InputObserver, Mapping[str, float | str]]] = []

    def solve(self) -> None:
        """Solve every group. A layer that was not reached, such as an expert without tokens, is left to its stage, with
        a state that saw nothing, and has a note that says so.
        """
        # No input says anything of what is no product; what comes behind is to see it rounded.
        self._decide_alone([task for task in self._work.tasks.values() if not task.site.product], {})
        for number in self._passes.groups():
            group = self._groups[number]
            if self._beside is not None:
                self._beside.go_to(number)
            if group[0].site.layout.fused:
                for task in group:
                    self._solve_experts(task)
            else:
                self._solve_group(group)
        self._solve_starved()
        self._decide_alone(self._left(), note_unreached({}))

    def outputs(self) -> Iterator[Tensor]:
        """What the solved block gives, batch by batch."""
        if not self._finish.wanted:
            return self._passes.outputs()
        for _ in self._passes.outputs():  # passes that wait come to their end
            pass
        assert self._beside is not None  # the float model runs beside
        self._finish.improve(self._edits, self._beside.outputs())
        return (run() for run in self._runs)

    def original_outputs(self) -> Iterator[Tensor]:
        """What the float block gives, batch by batch; nothing where there is none."""
        if self._finish.targets:
            return iter(self._finish.targets)
        return iter(()) if self._beside is None else self._beside.outputs()

    def finish(self) -> None:
        """Replace the layers by packed ones."""
        self._multipliers.remove()
        self._finish.release()
        surgery.apply(self._network, self._edits.values())

    def _solve_group(self, group: Sequence[Assignment]) -> None:
        notes, scale = smooth_group(
            self._network, self._work, group, self._pairs, self._passes, self._masks, self._edits, self._multipliers,
            self._weighted, self._finish.absorbed,
        )  # fmt: skip
        observer = self._observe(group, scale)
        if not observer.tokens and not self._ranks.any(any(True for _ in self._passes.captured_inputs())):
            return
        corrected = any(task.site.name in self._work.corrected for task in group)
        if scale is None and not corrected and are_starved(self._network, group, observer.tokens):
            self._starved.append((group, observer, notes))
            return
        make_room(8 * observer.in_features**2)  # for the Hessian: the passes have let go of much
        self._decide(group, observer, scale, notes)
        observer.release()
        make_room(8 * observer.in_features**2)

    def _left(self) -> list[Assignment]:
        done = {*self._edits, *self._untouched}
        return [task for name, task in self._work.tasks.items() if name not in done]

    def _solve_starved(self) -> None:
        """Show experts that are modules, and got too few tokens, those of all; what are no experts keep their own."""
        runs = self._runs[: self._finish.learned]
        for task, observer in shown_every_token(self._network, self._left(), runs, self._ranks):
            self._work.measure(task, observer)
            self._place(task, self._ranks.of(self._solved(task, observer, {"shown_every_token": 1})), seen=False)
        for group, observer, notes in self._starved:
            if {task.site.name for task in group} & {task.site.name for task in self._left()}:
                self._decide(group, observer, None, notes)
            observer.release()

    def _observe(self, group: Sequence[Assignment], scale: Tensor | None) -> InputObserver:
        found: InputObserver | None = None
        if self._beside is not None and self._pairs_tokens(group):
            found = observe_cross_covariance(self._passes, self._beside, group, self._masks, scale)
        return found if found is not None else observe_group(self._passes, group, self._masks)

    def _weighted(
        self,
        task: Assignment,
        guide: Guide | None,
        observer: InputObserver,
        scale: Tensor | None = None,
        wanted: Collection[str] | None = None,
    ) -> OutputGroups | None:
        """A group's inputs as a layer weights them; ``None`` where no stage says so or it is not known by what."""
        weights = None if guide is None else self._token_weights.get(guide, {}).get(task.site.name)
        if weights is None:
            return None
        drifts = isinstance(observer, CrossCovarianceObserver)

        def rows() -> Iterable[tuple[int, Rows]]:
            return rows_of_batches(self._passes, self._beside if drifts else None, self._masks)

        return weighted_groups(task, observer, weights, rows, scale, wanted, self._ranks)

    def _pairs_tokens(self, group: Sequence[Assignment]) -> bool:
        """Whether a stage wants what the float model gives a group, and its tokens may be those that come to it."""
        if not any(task.stage.needs_float_inputs for task in group) or group[0].site.name in self._called_again:
            return False
        return not self._ranks.any(chooses_tokens(self._network, self._passes, group[0].site))

    def _solve_experts(self, task: Assignment) -> None:
        state, notes = observe_experts(task, partial(self._network.parameter, task.site), self._passes)
        self._work.measure(task, state)
        self._place(task, self._ranks.of(self._solved(task, state, notes)))  # its experts are divided

    def _decide_alone(self, tasks: Sequence[Assignment], notes: Mapping[str, float | str]) -> None:
        """Decide on layers that no input reached."""
        for task in tasks:
            self._work.measure(task, task.stage.attach(task.site))

        def solved(task: Assignment) -> Quantize | None:
            return self._solved(task, task.stage.attach(task.site), notes)

        for task, edit in zip(tasks, decided(self._work, self._network, tasks, solved), strict=True):
            self._place(task, edit, seen=False)

    def _decide(
        self,
        group: Sequence[Assignment],
        observer: InputObserver,
        scale: Tensor | None,
        notes: Mapping[str, float | str],
    ) -> None:
        """Decide on layers that read one tensor."""
        apart: list[Assignment] = []
        for task in group:  # one is rounded before the next is looked at: no more than one is held
            wanted = task.stage.statistics
            state = self._weighted(task, task.stage.guide, observer, scale, wanted) or observer
            self._work.measure(task, state)
            if not by_all_ranks(task, group, state, self._ranks):
                apart.append(task)
                continue
            observer.last_use = task is group[-1] and not apart
            share_rows(state, wanted or (), self._ranks)
            self._place(task, self._solved(task, state, notes))
        self._decide_together(apart, observer, notes)

    def _decide_together(
        self, group: Sequence[Assignment], observer: InputObserver, notes: Mapping[str, float | str]
    ) -> None:
        """Decide on layers that read one tensor, each on a rank of its own where their stages say what they ask for."""
        if not group:
            return
        wanted = [task.stage.statistics for task in group]
        if any(one is None for one in wanted):
            for task in group:
                self._place(task, self._ranks.of(self._solved(task, observer, notes)))
            return
        owners = owners_of(self._ranks, group)
        asked = {name for one in wanted for name in one or ()}
        observer.settle(asked, owners[0] if len(set(owners)) == 1 else None)
        last = {owner: task for task, owner in zip(group, owners, strict=True)}

        def solved(task: Assignment) -> Quantize | None:
            observer.last_use = task is last[self._ranks.rank]
            return self._solved(task, observer, notes)

        for task, edit in zip(group, decided(self._work, self._network, group, solved, owners), strict=True):
            self._place(task, edit)

    def _solved(self, task: Assignment, state: Any, notes: Mapping[str, float | str]) -> Quantize | None:
        if task.site.name in self._work.corrected and not has_bias(self._network.module(task.site)):
            notes = {**notes, "correct_bias": "the layer has no bias to correct"}
        if task.stage.guide is not None:
            notes = {**notes, "objective": objective_of(task.stage.guide, state)}
        plain = state.plain if isinstance(state, OutputGroups) else state
        notes = {**notes, **range_notes(task.scheme, plain)}
        edit = self._work.decide(task, self._network.weight(task.site), state, notes)
        return None if edit is None else with_input_range(edit, plain)

    def _place(self, task: Assignment, edit: Quantize | None, *, seen: bool = True) -> None:
        """Let the passes go on through what was decided, if anything; a bias is corrected where inputs are ``seen``."""
        if edit is None:
            self._untouched.add(task.site.name)
            return
        weight = self._network.weight(task.site)
        module, correct = self._network.module(task.site), task.site.name in self._work.corrected
        correct = correct and seen and has_bias(module)
        before = self._mean_output(task) if correct else None
        if task.multiplied:
            edit = dataclasses.replace(edit, input_multiplier=self._multipliers.of(task.site))
        self._finish.remember(weight, edit)
        # The batches are inside the old modules: these go on with the new weights until all have passed.
        surgery.apply(self._network, [SetWeight(site=edit.site, weight=edit.tensor.dequantize())])
        if before is not None:
            after = self._mean_output(task)
            assert after is not None  # as many inputs came as before
            correct_bias(module, before, after)
        self._edits[edit.site] = edit

    def _mean_output(self, task: Assignment) -> Tensor | None:
        module, layout = self._network.module(task.site), task.site.layout
        return mean_output(module, layout, self._passes.captured_inputs(), self._ranks)
