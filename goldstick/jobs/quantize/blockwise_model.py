"""A model of which one block at a time is in memory, as a plan turns, calibrates, rounds and observes it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor, nn

from goldstick.algorithms.stage import CacheQuantizer
from goldstick.calibration.arguments import run_around
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.block_loop import Batches, BlockLoop, Calls, calibrate, masks_of, starts
from goldstick.calibration.device_memory import fits_on_device, held_on_device
from goldstick.calibration.end_gradients import end_gradients
from goldstick.calibration.memory_budget import activations, fits_together, peak_memory
from goldstick.calibration.original import Original
from goldstick.calibration.scale_fold_targets import ScaleFoldTargets
from goldstick.calibration.sweep import find_fold_targets, prepare_experts
from goldstick.calibration.task import Assignment
from goldstick.calibration.unreached import refuse_nothing_reached
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.core.freed_memory import give_large_blocks_back
from goldstick.core.input_squares import InputSquares
from goldstick.core.progress import Progress
from goldstick.core.ranks import Ranks
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.proof.observation import Observation, Passes, observe_or_say
from goldstick.jobs.quantize.cache_by_blocks import BlockwiseCache
from goldstick.jobs.quantize.source_blocks import SourceBlocks
from goldstick.recipes.rotate import rotate_block, rotate_outside
from goldstick.recipes.run import calibrated_work, round_sites, tie_up
from goldstick.structure.network import Network, Site
from goldstick.structure.probe.input_groups import block_signature
from goldstick.structure.trace import on_device, tensors_in


class BlockwiseModel:
    """What becomes of a model, block by block; what is on disk is nothing of its business.

    Use it in this order: ``start``; ``loop``, block by block; ``finish``.

    Args:
        plan: What to do; its model is one chain of blocks.
        streamed: The plan's model, read block by block.
        batches: Calibration batches, all of them; none where no stage looks at data.
        proof: Keyword arguments of each call of the model that its proof makes; the first rank makes it.
        max_memory: Bytes that may be used; decides whether all batches wait together in a block.
        progress: Told what is done.
        ranks: Who does this together; each takes its share of the batches.
        measures: Whether to keep how large the inputs of each site are.

    Attributes:
        network: The network.
        blocks: Paths of its blocks.
        results: Site → its error and notes, as plain data.
        cache: Its quantized KV cache, where it has one; after ``start``.
        measured: Site → the squares of its inputs, where these are kept.
    """

    def __init__(
        self,
        plan: Plan,
        streamed: StreamedModel,
        batches: Batches,
        proof: Batches,
        max_memory: int,
        progress: Progress,
        ranks: Ranks,
        measures: bool = False,
    ) -> None:
        self._plan, self._streamed, self._max_memory, self._progress = plan, streamed, max_memory, progress
        self._model, self._ranks = streamed.model, ranks
        batches, proof = ([on_device(batch, ranks.device) for batch in given] for given in (batches, proof))
        self._first_batch = batches[0] if batches else None
        own = ranks.share(len(batches))
        self._first_number, self._batches = own.start, [batches[index] for index in own]
        self._proof = proof if ranks.first else []
        self._float_calls: Calls = ()
        self._float_model: nn.Module | None = None  # around its blocks, where layers there are compared with
        self._has_float_model = False
        self._activations: dict[object, int] = {}
        self._fold_targets: ScaleFoldTargets | None = None
        self._calls: Calls = []
        self._gradients: dict[str, Sequence[Tensor]] = {}
        self.network = Network(streamed.model, cut=plan.network.cut)
        if streamed.resting is not None:
            self.network.before_reading = streamed.resting.have
        self.measured: dict[str, InputSquares] = {}
        measured = self._keep if measures else None
        work = calibrated_work(self.network, plan.resolution, self._take_note, measured)
        self._work = dataclasses.replace(work, ranks=ranks)
        self.blocks = streamed.blocks
        self.results: dict[str, dict[str, Any]] = {}
        self.cache: BlockwiseCache | None = None
        self._block = ""

    def start(
        self,
        done: int,
        results: Mapping[str, dict[str, Any]],
        cache: Mapping[str, Any],
        told: Callable[[int], None] = lambda nbytes: None,
    ) -> list[Tensor]:
        """Do what comes before the blocks; the first block is in memory afterwards.

        Args:
            done: How many blocks were finished by a run that was stopped.
            results: Its ``results``.
            cache: The state of its cache.
            told: How many bytes the hidden states will take, before anything is done that takes long.

        Returns:
            The first hidden states: of the batches, of the proof, and of the batches in the float model where a stage
            compares with it.
        """
        self.results = dict(results)
        if self._plan.rotation is not None:
            rotate_outside(self.network, self._plan.rotation)
        self._read(self.blocks[0])
        prepare_experts(self.network, self._work)
        floats = self._float_starts(done, told)
        self._round(None)
        for stage in self._plan.resolution.of(CacheQuantizer):
            self.cache = BlockwiseCache(stage, self._model, cache, len(self._batches), self._ranks)
        hidden, self._calls = self._starts()
        if not floats:
            told(_bytes_of(hidden))
        if self._work.smoothing:
            assert self._first_batch is not None  # a stage that smooths looks at data
            self._fold_targets = find_fold_targets(self.network, self.blocks, self._first_batch)
        if not self._changed_outside():
            self._streamed.release_outside()
        return [*hidden, *floats]

    def release(self, block: str) -> None:
        """Let go of a block."""
        self._streamed.release(block)

    def loop(self, write: Callable[[str, Iterator[Tensor]], Sequence[Tensor]]) -> BlockLoop:
        """What to do with each block, in their order; see :class:`BlockLoop`."""
        return BlockLoop(
            network=self.network,
            work=self._work,
            batches=self._batches,
            calls=self._calls,
            float_calls=self._float_calls,
            gradients=self._gradients,
            fold_targets=self._fold_targets,
            caches=self.cache,
            load=self._load,
            write=write,
            fits_together=self._fits_together,
        )

    def finish(self, states: Sequence[Tensor]) -> tuple[Observation | None, str]:
        """Solve what lies outside the blocks, and observe the model in memory."""
        model, count = self._model, len(self._batches)
        if not self._changed_outside():
            self._streamed.load_outside()
        outside = self._work.within(None)

        def around(model: nn.Module, calls: Calls, first: int, index: int, run: Callable[[], Any]) -> Any:
            return run_around(model, self.blocks, states[first + index], calls[index][self.blocks[0]].rest, run)

        def last_output(model: nn.Module, calls: Calls, first: int, index: int) -> Tensor:
            return next(tensors_in(around(model, calls, first, index, partial(model, **self._batches[index]))))

        def runs(model: nn.Module, calls: Calls, first: int = 0) -> list[Callable[[], Tensor]]:
            return [partial(last_output, model, calls, first, index) for index in range(count)]

        def observed(passes: Passes) -> list[Any]:
            reading = len(self._proof)
            found = [around(model, self._calls, 0, count + place, run) for place, run in enumerate(passes[:reading])]
            return found + [run() for run in passes[reading:]]

        if outside.tasks:
            original, floats = None, self._float_model
            if floats is not None:
                original = Original(module=floats, path="", runs=runs(floats, self._float_calls, len(states) - count))
            masks = masks_of(self._batches)
            calibrate(BlockCalibration(self.network, outside, runs(model, self._calls), masks, original=original))
        if self._first_batch is not None and self._ranks.first:  # which has the results of blocks done before
            refuse_nothing_reached({name: self.results[name]["notes"] for name in self._work.tasks})
        tie_up(self.network, self._plan.resolution)
        if self.cache is not None:
            self.cache.finish()
        if not self._ranks.first:
            return None, ""
        return observe_or_say(model, self._plan.source.directory, observed)

    def _changed_outside(self) -> bool:
        """Whether something outside the blocks is no longer what the source holds, before the blocks' turn comes."""
        return self._plan.rotation is not None or bool(self._without_data(None))

    def _float_starts(self, done: int, told: Callable[[int], None]) -> list[Tensor]:
        """The first hidden states of the float model, where a stage compares with it; nothing is rounded yet."""
        if not self._work.needs_float_inputs:
            return []
        self._has_float_model = True
        hidden, self._float_calls = starts(self._model, self.blocks, self._batches)
        told(2 * _bytes_of(hidden))  # those of the rounded model are as large
        if self._work.needs_end_gradients:
            self._progress("gradients of the float model's loss", 0, len(self.blocks))
            self.release(self.blocks[0])
            source = SourceBlocks(self._model, self._read, self.release)
            self._gradients = end_gradients(
                self._model, self.blocks, self._batches, hidden, self._float_calls, source, self._first_number, done
            )
            self._read(self.blocks[0])
        if self._work.within(None).needs_float_inputs:
            self._float_model = copy.deepcopy(self._model)
            for block in self.blocks:
                self._float_model.get_submodule(block).to("meta")
        return hidden

    def _starts(self) -> tuple[list[Tensor], Calls]:
        """The first hidden states and every block's other arguments, for all batches and then for the proof."""
        if self.cache is None:
            return starts(self._model, self.blocks, [*self._batches, *self._proof])
        hidden, calls = starts(self._model, self.blocks, self._batches)
        self.cache.give_to_model()
        proof_hidden, proof_calls = starts(self._model, self.blocks, self._proof)
        return [*hidden, *proof_hidden], [*calls, *proof_calls]

    def _load(self, block: str) -> nn.Module | None:
        """Have a block in memory, turned, and rounded where that needs no data; its copy before it was rounded."""
        self._block = block
        self._tell("")
        if block != self.blocks[0]:
            self._read(block)
        original = copy.deepcopy(self._model.get_submodule(block)) if self._has_float_model else None
        if original is not None and self._streamed.resting is not None:
            self._streamed.resting.watch(block, original)
        self._round(block)
        return original

    def _read(self, block: str) -> None:
        self._streamed.load(block)
        if self._plan.rotation is not None:
            rotate_block(self.network, self._plan.rotation, block)

    def _fits_together(self, block: str, run: Callable[[], Tensor], models: int) -> bool:
        """Whether all batches may wait together in a block; blocks that are alike need as much."""
        module, kind = self._model.get_submodule(block), block_signature(self.network, block)
        device, count = self._ranks.device, len(self._batches)
        if kind not in self._activations:
            measured = partial(held_on_device, module, run, device, self._streamed.nbytes_on_device)
            self._activations[kind] = measured() if device.type == "cuda" else activations(module, run)
        held = self._activations[kind]
        if device.type == "cuda":
            return fits_on_device(module, held, count, device, models)
        together = fits_together(module, held, count, self._max_memory, models)
        give_large_blocks_back(scarce=not together)
        return together

    def _round(self, block: str | None) -> None:
        """Quantize what needs no data in a block, or outside all blocks."""
        for name, result in round_sites(self.network, self._without_data(block)).items():
            self.results[name] = {"error": asdict(result.error), "notes": dict(result.notes)}

    def _without_data(self, block: str | None) -> list[Assignment]:
        """What is quantized without data in a block, or outside all blocks."""
        return [
            assignment
            for name, assignment in self._plan.resolution.assignments.items()
            if assignment.site.block == block and name not in self._work.tasks
        ]

    def _take_note(self, task: Assignment, edit: Quantize, error: WeightError) -> None:
        self.results[task.site.name] = {"error": asdict(error), "notes": dict(edit.notes)}
        ratio = ""
        # The errors of a stage that aims at the float model lack a constant.
        compared = "rtn_output_error" in edit.notes and not task.stage.needs_float_inputs
        if compared and float(edit.notes["rtn_output_error"]) > 0:
            share = float(edit.notes["output_error"]) / float(edit.notes["rtn_output_error"])
            ratio = f", output error {share:.0%} of rounding's"
        self._tell(f": {task.site.name.removeprefix(task.site.block or '').strip('.')}{ratio}")

    def _keep(self, site: Site, squares: InputSquares) -> None:
        self.measured[site.name] = squares

    def _tell(self, what: str) -> None:
        place = self.blocks.index(self._block) if self._block else 0
        peak = peak_memory() / 1e9
        self._progress(f"calibrating {self._block}{what} (peak {peak:.1f} GB)", place, len(self.blocks))


def _bytes_of(states: Sequence[Tensor]) -> int:
    return sum(state.nbytes for state in states)
