"""Calibrate one block: solve its input groups in the order they run, each on the outputs of those solved before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.calibration.bias_correction import correct_bias, has_bias, mean_output
from goldstick.calibration.experts import listen_to_experts
from goldstick.calibration.groups import input_groups
from goldstick.calibration.input_factors import InputMultipliers
from goldstick.calibration.input_range import with_input_range
from goldstick.calibration.observing import Rows, observe_cross_covariance, observe_group, rows_of_batches
from goldstick.calibration.original import Original, OriginalPasses
from goldstick.calibration.packed_edits import PackedEdits
from goldstick.calibration.passes import Passes, PausedPasses, RepeatedPasses
from goldstick.calibration.reconstruction import Passes as BlockPasses
from goldstick.calibration.reconstruction import reconstruct_block
from goldstick.calibration.smoothing import smooth_group
from goldstick.calibration.task import Assignment, Work
from goldstick.calibration.unreached import note_unreached
from goldstick.calibration.weighted_inputs import weighted_groups, weights_in_block
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.edits import SetWeight
from goldstick.core.freed_memory import make_room
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.structure.network import Network
from goldstick.structure.probe.findings import FoldPair

Masks = Sequence[Tensor | None]


class BlockCalibration:
    """The calibration of one block (or of a whole model as one block), in place.

    Use it in this order: ``solve``, which leaves the block with rounded float weights; ``outputs``, what the block
    then gives for each batch; ``finish``, which puts the packed layers in place.

    Args:
        network: The network; the block's weights are in memory.
        work: What to do in the block.
        runs: The block's forward on each batch.
        masks: Which tokens of each batch count; ``None`` for all.
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
        masks: Masks,
        *,
        pairs: Sequence[FoldPair] = (),
        together: bool = True,
        original: Original | None = None,
        look: Callable[[], Tensor] | None = None,
        gradients: Sequence[Tensor] | None = None,
    ) -> None:
        self._network, self._work, self._masks, self._pairs = network, work, masks, pairs
        products = {name: task for name, task in work.tasks.items() if task.site.product}
        self._groups, again = input_groups(network, products, look or runs[0])
        self._called_again = {task.site.name for number in again for task in self._groups[number]}
        modules = [list(dict.fromkeys(network.module(task.site) for task in group)) for group in self._groups]
        self._passes: Passes = (PausedPasses if together else RepeatedPasses)(runs, modules, again)
        self._beside: OriginalPasses | None = None
        self._token_weights: dict[str, Sequence[Tensor]] = {}
        if original is not None:
            self._token_weights = weights_in_block(work.tasks, original, gradients)
            sites = [[task.site for task in group] for group in self._groups]
            copies = [list(dict.fromkeys(original.counterpart(site.module) for site in group)) for group in sites]
            self._beside = OriginalPasses(original, copies, together=together)
        self._edits = PackedEdits()
        self._runs = runs
        self._weights: dict[str, Tensor] = {}  # in float, for a block reconstruction
        self._targets: list[Tensor] = []
        self._multipliers = InputMultipliers(network)

    def solve(self) -> None:
        """Solve every group. A layer that was not reached, such as an expert without tokens, is left to its stage, with
        a state that saw nothing, and has a note that says so.
        """
        for task in self._work.tasks.values():
            if not task.site.product:  # no input says anything of it; what comes behind is to see it rounded
                self._decide(task, task.stage.attach(task.site), {})
        for number in self._passes.groups():
            group = self._groups[number]
            if self._beside is not None:
                self._beside.go_to(number)
            if group[0].site.layout.fused:
                for task in group:
                    self._solve_experts(task)
            else:
                self._solve_group(group)
        for name, task in self._work.tasks.items():
            if name not in self._edits:
                self._decide(task, task.stage.attach(task.site), note_unreached({}))

    def outputs(self) -> Iterator[Tensor]:
        """What the solved block gives, batch by batch."""
        if self._work.reconstruction is None:
            return self._passes.outputs()
        for _ in self._passes.outputs():  # passes that wait come to their end
            pass
        self._reconstruct(self._work.reconstruction)
        return (run() for run in self._runs)

    def original_outputs(self) -> Iterator[Tensor]:
        """What the float block gives, batch by batch; nothing where there is none."""
        if self._targets:
            return iter(self._targets)
        return iter(()) if self._beside is None else self._beside.outputs()

    def finish(self) -> None:
        """Replace the layers by packed ones."""
        self._multipliers.remove()
        surgery.apply(self._network, self._edits.values())

    def _reconstruct(self, reconstruction: BlockReconstruction) -> None:
        assert self._beside is not None  # the float model runs beside a block reconstruction
        self._targets = list(self._beside.outputs())
        passes = BlockPasses(runs=self._runs, targets=self._targets, masks=self._masks)
        found = reconstruct_block(self._network, dict(self._edits), self._weights, reconstruction, passes)
        for name, edit in found.items():
            surgery.apply(self._network, [SetWeight(site=name, weight=edit.tensor.dequantize())])
            self._edits[name] = edit
            self._work.revise(self._work.tasks[name], self._weights[name], edit)

    def _solve_group(self, group: Sequence[Assignment]) -> None:
        notes, scale = smooth_group(
            self._network,
            self._work,
            group,
            self._pairs,
            self._passes,
            self._masks,
            self._edits,
            self._multipliers,
        )
        observer = self._observe(group, scale)
        if not observer.tokens and not any(True for _ in self._passes.captured_inputs()):
            return
        make_room(8 * observer.in_features**2)  # for the Hessian: the passes have let go of much
        for task in group:
            observer.last_use = task is group[-1]
            self._decide(task, self._state_of(task, observer, scale), notes)
        observer.release()
        make_room(8 * observer.in_features**2)

    def _observe(self, group: Sequence[Assignment], scale: Tensor | None) -> InputObserver:
        found: InputObserver | None = None
        if self._beside is not None and self._pairs_tokens(group):
            found = observe_cross_covariance(self._passes, self._beside, group, self._masks, scale)
        return found if found is not None else observe_group(self._passes, group, self._masks)

    def _state_of(
        self, task: Assignment, observer: InputObserver, scale: Tensor | None
    ) -> InputObserver | OutputGroups:
        """What a task is solved by: the group's inputs, weighted where its stage says so and it is known by what."""
        weights = self._token_weights.get(task.site.name)
        if task.stage.guide is None or weights is None:
            return observer
        outputs = task.site.matrix_shape[-2]
        drifts = isinstance(observer, CrossCovarianceObserver)

        def rows() -> Iterable[tuple[int, Rows]]:
            return rows_of_batches(self._passes, self._beside if drifts else None, self._masks)

        return weighted_groups(task.stage, outputs, observer, weights, rows, scale) or observer

    def _pairs_tokens(self, group: Sequence[Assignment]) -> bool:
        """Whether a stage wants what the float model gives a group, and its tokens may be those that come to it."""
        if not any(task.stage.needs_float_inputs for task in group) or group[0].site.name in self._called_again:
            return False
        return not self._chosen(group[0])

    def _chosen(self, task: Assignment) -> bool:
        """Whether a layer may be given a choice of tokens, as one of a list of experts: the float model may choose
        as many, and others."""
        path = task.site.module.removeprefix(task.site.block or "").removeprefix(".").split(".")
        start = self._network.model.get_submodule(task.site.block or "")
        above = [start.get_submodule(".".join(path[:length])) for length in range(1, len(path))]
        flat = any(captured.tensor.ndim == 2 for captured in self._passes.captured_inputs())
        return flat and any(isinstance(module, nn.ModuleList) for module in above)

    def _solve_experts(self, task: Assignment) -> None:
        state, notes = task.stage.attach(task.site), dict[str, float | str]()
        if state is not None:
            parameter = getattr(self._network.module(task.site), task.site.parameter)
            for captured in self._passes.captured_inputs():
                listen_to_experts(parameter, captured, lambda expert, x: state[expert].observe(x))
            least = task.stage.least_inputs(task.site)
            starved = {expert for expert, seen in enumerate(state) if seen.tokens < least}
            if starved:
                fresh = task.stage.attach(task.site)
                for captured in self._passes.captured_inputs():
                    listen_to_experts(
                        parameter,
                        captured,
                        lambda expert, x: fresh[expert].observe(x) if expert in starved else None,
                        every_token=True,
                    )
                for expert in starved:
                    state[expert] = fresh[expert]
                notes["shown_every_token"] = len(starved)
        self._decide(task, state, notes)

    def _decide(self, task: Assignment, state: Any, notes: Mapping[str, float | str]) -> None:
        weight = self._network.weight(task.site)
        module, correct = self._network.module(task.site), task.site.name in self._work.corrected
        if correct and not has_bias(module):
            correct, notes = False, {**notes, "correct_bias": "the layer has no bias to correct"}
        before = mean_output(module, task.site.layout, self._passes.captured_inputs()) if correct else None
        if self._work.reconstruction is not None:
            self._weights[task.site.name] = weight.clone()
        if task.stage.guide is not None and not isinstance(state, OutputGroups):
            notes = {**notes, "objective": "layer: it is not known what an error of its output costs further on"}
        plain = state.plain if isinstance(state, OutputGroups) else state
        edit = with_input_range(self._work.decide(task, weight, state, notes), plain)
        if task.multiplied:
            edit = dataclasses.replace(edit, input_multiplier=self._multipliers.of(task.site))
        # The batches are inside the old modules: these go on with the new weights until all have passed.
        surgery.apply(self._network, [SetWeight(site=edit.site, weight=edit.tensor.dequantize())])
        if before is not None:
            after = mean_output(module, task.site.layout, self._passes.captured_inputs())
            assert after is not None  # as many inputs came as before
            correct_bias(module, before, after)
        self._edits[edit.site] = edit


@torch.no_grad()
def calibrate(calibration: BlockCalibration) -> list[Tensor]:
    """Calibrate a block whose outputs stay in memory; returns them, batch by batch."""
    calibration.solve()
    outputs = list(calibration.outputs())
    calibration.finish()
    return outputs
