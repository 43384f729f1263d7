"""A model of which one block at a time is in memory, as a plan turns, calibrates, rounds and observes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor, nn

from goldstick.calibration.absorbers import Absorbers
from goldstick.calibration.arguments import run_around
from goldstick.calibration.block import BlockCalibration, calibrate
from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.calibration.original import Original
from goldstick.calibration.passes import Runs
from goldstick.calibration.sweep import Calls, block_runs, find_absorbers, masks_of, prepare_experts, starts
from goldstick.calibration.task import Task
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.core.freed_memory import give_large_blocks_back
from goldstick.formats.transformers_streaming import StreamedModel
from goldstick.pipeline.cache_by_blocks import BlockwiseCache
from goldstick.pipeline.float_stream import FloatStream
from goldstick.pipeline.memory_budget import activations, fits_together
from goldstick.pipeline.observation import Observation, Passes, observe
from goldstick.pipeline.plan import Plan
from goldstick.recipes.resolve import Assignment
from goldstick.recipes.rotate import rotate_block, rotate_outside
from goldstick.recipes.run import calibrated_work, round_sites, tie_up
from goldstick.structure.network import Network
from goldstick.structure.probe import block_signature
from goldstick.structure.trace import tensors_in

Batches = Sequence[Mapping[str, Tensor]]


class BlockwiseModel:
    """What becomes of a model, block by block; what is on disk is nothing of its business.

    Use it in this order: ``start``; for each block ``load``, ``advance`` and ``release``; ``finish``.

    Args:
        plan: What to do; its model is one chain of blocks.
        streamed: The plan's model, read block by block.
        batches: Calibration batches; none where no stage looks at data.
        proof: Keyword arguments of each call of the model that its proof makes.
        max_memory: Bytes that may be used; decides whether all batches wait together in a block.
        told: Told what is done in a block.

    Attributes:
        network: The network.
        blocks: Paths of its blocks.
        results: Site → its error and notes, as plain data.
        cache: Its quantized KV cache, where it has one; after ``start``.
    """

    def __init__(
        self,
        plan: Plan,
        streamed: StreamedModel,
        batches: Batches,
        proof: Batches,
        max_memory: int,
        told: Callable[[str], None],
    ) -> None:
        self._plan, self._streamed, self._max_memory, self._told = plan, streamed, max_memory, told
        self._model = streamed.model
        self._batches, self._proof = batches, proof
        self._work = calibrated_work(plan.resolution, self._take_note)
        self._floats: FloatStream | None = None
        self._activations: dict[object, int] = {}
        self._absorbers: Absorbers | None = None
        self._calls: Calls = []
        self.network = Network(streamed.model, cut=plan.network.cut)
        self.blocks = streamed.blocks
        self.results: dict[str, dict[str, Any]] = {}
        self.cache: BlockwiseCache | None = None

    def start(self, results: Mapping[str, dict[str, Any]], cache: Mapping[str, Any]) -> list[Tensor]:
        """Do what comes before the blocks; the first block is in memory afterwards.

        Args:
            results: ``results`` of a run that was stopped.
            cache: The state of its cache.

        Returns:
            The first hidden states: of the batches, of the proof, and of the batches in the float model where a stage
            compares with it.
        """
        self.results = dict(results)
        if self._plan.rotation is not None:
            rotate_outside(self.network, self._plan.rotation)
        self.load(self.blocks[0])
        prepare_experts(self.network, self._work)
        floats = self._float_starts()
        self._round(None)
        if self._plan.resolution.kv is not None:
            self.cache = BlockwiseCache(self._plan.resolution.kv, self._model, cache)
        hidden, self._calls = self._starts()
        if self._work.balancing:
            self._absorbers = find_absorbers(self.network, self.blocks, self._batches[0])
        if not self._changed_outside():
            self._streamed.release_outside()
        return [*hidden, *floats]

    def load(self, block: str) -> None:
        """Read a block and turn it as the recipe says."""
        self._streamed.load(block)
        if self._plan.rotation is not None:
            rotate_block(self.network, self._plan.rotation, block)

    def release(self, block: str) -> None:
        """Let go of a block."""
        self._streamed.release(block)

    def advance(self, block: str, states: Sequence[Tensor]) -> Iterator[Tensor]:
        """Calibrate a block and let all hidden states through it; when the last came out, the block is finished."""
        original = self._floats.block(self._model.get_submodule(block), block, states) if self._floats else None
        self._round(block)
        runs = block_runs(self._model, block, self._calls, states, self._cache_of if self.cache is not None else None)
        count = len(self._batches)
        halves = [] if original is None else [original.module]
        with multiplying_in_float32(*halves):
            with multiplying_in_float32(self._model.get_submodule(block)):
                calibration = self._calibration(block, runs, original) if count else None
                if calibration is not None:
                    calibration.solve()
                    yield from calibration.outputs()
                    calibration.finish()
                    give_large_blocks_back(scarce=True)  # the next block's weights would fill the heap for good
            if self.cache is not None:
                self.cache.settle()
            for run in runs[count:]:  # what the proof looks at goes through the packed layers
                yield run()
            if calibration is not None:
                yield from calibration.original_outputs()

    def finish(self, states: Sequence[Tensor]) -> Observation:
        """Solve what lies outside the blocks, and observe the model in memory."""
        model, count = self._model, len(self._batches)
        if not self._changed_outside():
            self._streamed.load_outside()
        outside = self._work.within(None)

        def with_blocks_done(index: int, run: Callable[[], Any]) -> Any:
            return run_around(model, self.blocks, states[index], self._calls[index][self.blocks[0]].rest, run)

        def last_output(index: int) -> Tensor:
            return next(tensors_in(with_blocks_done(index, lambda: model(**self._batches[index]))))

        def observed(passes: Passes) -> list[Any]:
            reading = len(self._proof)
            found = [with_blocks_done(count + place, run) for place, run in enumerate(passes[:reading])]
            return found + [run() for run in passes[reading:]]

        if outside.tasks:
            runs = [partial(last_output, index) for index in range(count)]
            original = self._floats.whole(states) if self._floats else None
            calibrate(BlockCalibration(self.network, outside, runs, masks_of(self._batches), original=original))
        tie_up(self.network, self._plan.resolution)
        if self.cache is not None:
            self.cache.finish()
        return observe(model, self._plan.source.directory, observed)

    def _changed_outside(self) -> bool:
        """Whether something outside the blocks is no longer what the source holds, before the blocks' turn comes."""
        return self._plan.rotation is not None or bool(self._without_data(None))

    def _float_starts(self) -> list[Tensor]:
        """The first hidden states of the float model, where a stage compares with it; nothing is rounded yet."""
        if not self._work.asymmetric:
            return []
        hidden, calls = starts(self._model, self.blocks, self._batches)
        outside = self._work.within(None).asymmetric
        self._floats = FloatStream(self._model, self.blocks, self._batches, calls, outside)
        return hidden

    def _starts(self) -> tuple[list[Tensor], Calls]:
        """The first hidden states and every block's other arguments, for all batches and then for the proof."""
        if self.cache is None:
            return starts(self._model, self.blocks, [*self._batches, *self._proof])
        hidden, calls = starts(self._model, self.blocks, self._batches)
        self.cache.give_to_model()
        proof_hidden, proof_calls = starts(self._model, self.blocks, self._proof)
        return [*hidden, *proof_hidden], [*calls, *proof_calls]

    def _cache_of(self, number: int) -> Any:
        assert self.cache is not None
        return self.cache.of_batch(number) if number < len(self._batches) else self.cache.of_proof()

    def _calibration(self, block: str, runs: Runs, original: Original | None) -> BlockCalibration:
        count = len(self._batches)
        together = self._fits_together(block, runs[0], streams=1 if original is None else 2)
        give_large_blocks_back(scarce=not together)
        return BlockCalibration(
            self.network,
            self._work.within(block),
            runs[:count],
            masks_of(self._batches),
            pairs=self._absorbers.of(block) if self._absorbers is not None else (),
            together=together,
            original=original,
            look=runs[count] if self._is_shown_by_proof(block) else runs[0],
        )

    def _fits_together(self, block: str, run: Callable[[], Tensor], streams: int) -> bool:
        """Whether all batches may wait together in a block; blocks that are alike need as much."""
        module, kind = self._model.get_submodule(block), block_signature(self.network, block)
        if kind not in self._activations:
            self._activations[kind] = activations(module, run)
        return fits_together(module, self._activations[kind], len(self._batches), self._max_memory, streams)

    def _is_shown_by_proof(self, block: str) -> bool:
        """Whether a short pass of the proof shows the order of a block's layers: unless inputs choose them, or a cache
        would keep what it is shown."""
        chosen = any(isinstance(module, nn.ModuleList) for module in self._model.get_submodule(block).modules())
        return bool(self._proof) and not chosen and self.cache is None

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

    def _take_note(self, task: Task, edit: Quantize, error: WeightError) -> None:
        self.results[task.site.name] = {"error": asdict(error), "notes": dict(edit.notes)}
        ratio = ""
        compared = "rtn_output_error" in edit.notes and not task.stage.asymmetric  # whose errors lack a constant
        if compared and float(edit.notes["rtn_output_error"]) > 0:
            share = float(edit.notes["output_error"]) / float(edit.notes["rtn_output_error"])
            ratio = f", output error {share:.0%} of rounding's"
        self._told(f": {task.site.name.removeprefix(task.site.block or '').strip('.')}{ratio}")
