"""By blocks: carry out a plan with one block of the model in memory, journaling every block that is finished."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.absorbers import small
from goldstick.calibration.arguments import block_calls, run_around
from goldstick.calibration.block import BlockCalibration, calibrate
from goldstick.calibration.data import CalibrationData
from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.calibration.sweep import Calls, block_runs, find_absorbers, masks_of, prepare_experts, starts
from goldstick.calibration.task import Task
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.core.freed_memory import return_freed_memory
from goldstick.errors import StructureError
from goldstick.formats.safetensors_file import file_head
from goldstick.formats.transformers_names import CheckpointNames
from goldstick.formats.transformers_streaming import StreamedModel
from goldstick.pipeline.entries import Specs
from goldstick.pipeline.float_stream import FloatStream
from goldstick.pipeline.hidden_states import HiddenStates, write_hidden_states
from goldstick.pipeline.journal import WorkDirectory, uninterrupted
from goldstick.pipeline.memory_budget import activations, fits_together, peak_memory
from goldstick.pipeline.observation import Observation, Passes, model_inputs, observe
from goldstick.pipeline.plan import Plan, PlannedTensor
from goldstick.pipeline.records import versions
from goldstick.pipeline.save import float_tensors, quantized_pieces, save_entries
from goldstick.pipeline.shards import ShardedWriter
from goldstick.pipeline.write import Calibrate, Outcome
from goldstick.recipes.run import Progress, calibrated_work, round_sites, tie_up
from goldstick.report.storage import dump_json
from goldstick.structure.blocks import block_of
from goldstick.structure.findings import FoldPair
from goldstick.structure.network import Network
from goldstick.structure.probe import block_signature
from goldstick.structure.trace import tensors_in


def prepare(
    plan: Plan, device: torch.device, calibrate: Calibrate | None, max_memory: int, progress: Progress
) -> BlockwiseRun | None:
    """A run over the blocks, or ``None`` where the plan needs none, or its model cannot be taken apart into blocks."""
    if not plan.by_blocks or device.type != "cpu" or calibrate is None:
        return None
    streamed = StreamedModel(plan.source.directory)
    data = calibrate(streamed.model)
    streamed.load(streamed.blocks[0])
    try:
        block_calls(streamed.model, streamed.blocks, small(data.batches()[0]))
    except StructureError:
        return None
    return BlockwiseRun(plan, streamed, data, max_memory, progress)


class BlockwiseRun:
    """One run over the blocks of a checkpoint.

    Args:
        plan: What to do; its model is one chain of blocks.
        streamed: The plan's model, read block by block.
        data: Calibration data.
        max_memory: Bytes that may be used; decides whether all batches wait together in a block.
        progress: Told what is done.
    """

    def __init__(
        self, plan: Plan, streamed: StreamedModel, data: CalibrationData, max_memory: int, progress: Progress
    ) -> None:
        self._plan, self._streamed, self._progress, self._max_memory = plan, streamed, progress, max_memory
        self._network = Network(streamed.model)
        self._names = CheckpointNames(plan.network.model)
        self._data, self._batches = data, data.batches()
        self._proof = model_inputs(streamed.model, plan.source.directory)
        self._results: dict[str, dict[str, Any]] = {}
        self._place = 0, len(streamed.blocks), ""
        self._work = calibrated_work(plan.resolution, self._take_note)
        self._floats: FloatStream | None = None
        self._activations: dict[object, int] = {}

    def identity(self) -> dict[str, str]:
        """What the run is of; one that differs in any of it cannot be gone on with."""
        source = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self._plan.source.files]
        heads = [hashlib.sha256(file_head(path)).hexdigest() for path in self._plan.source.files]
        return {
            "recipe": _digest(self._plan.recipe.model_dump(mode="json")),
            "source": _digest([source, heads, self._plan.source.config]),
            "calibration data": self._data.fingerprint,
            "version of goldstick or a library": _digest(versions()),
        }

    @torch.no_grad()
    def write(self, work: WorkDirectory) -> Outcome:
        """Do what is not yet done, in ``work``."""
        journal = work.journal()
        done: int = journal.get("blocks_done", 0)
        self._results = dict(journal.get("sites", {}))
        if not journal:
            for left in work.checkpoint.iterdir():
                left.unlink()
        elif done:
            HiddenStates.remove(work.path, done - 1)  # of a run that was cut short right after its last word
        chain = self._streamed.blocks
        self._streamed.load(chain[0])
        prepare_experts(self._network, self._work)
        float_hidden = self._float_starts(chain)
        self._round(None)
        hidden, calls = starts(self._streamed.model, chain, [*self._batches, *self._proof])
        absorbers = find_absorbers(self._network, chain, self._batches[0]) if self._work.balancing else None
        states = (
            HiddenStates(work.path, done, journal["hidden"]) if journal else self._begin(work, [*hidden, *float_hidden])
        )
        del hidden, float_hidden
        if done:
            self._streamed.release(chain[0])
        limit = self._plan.recipe.export.max_shard_size
        writer = ShardedWriter(work.checkpoint, self._specs(chain), limit, journal.get("files"))
        try:
            for index in range(done, len(chain)):
                self._place = index, len(chain), chain[index]
                self._tell("")
                if index:
                    self._streamed.load(chain[index])
                pairs = absorbers.of(chain[index]) if absorbers else ()
                states = self._advance(work, chain[index], calls, states, pairs)
                self._write(writer, chain[index])
                progress = {"blocks_done": index + 1, "hidden": states.sha256, "sites": self._results}
                with uninterrupted():
                    work.commit(progress | {"files": writer.state()})
                HiddenStates.remove(work.path, index)
                self._streamed.release(chain[index])
                return_freed_memory()
            expected = self._finish(chain, calls, states)
            self._write(writer, None)
            hashes = writer.close()
        finally:
            writer.abandon()
        for left in work.checkpoint.iterdir():  # of a run that was cut short behind this point
            if left.name not in hashes:
                left.unlink()
        errors = {name: WeightError(**found["error"]) for name, found in self._results.items()}
        notes = {name: found["notes"] for name, found in self._results.items()}
        return Outcome(
            hashes=hashes,
            layers=[tensor.stored for tensor in self._plan.tensors if tensor.stored],
            errors=errors,
            notes=notes,
            expected=expected,
            audit=self._data.audit(),
            warnings=self._data.warnings(),
        )

    def _float_starts(self, chain: Sequence[str]) -> list[Tensor]:
        """The first hidden states of the float model, where a stage compares with it; nothing is rounded yet."""
        if not self._work.asymmetric:
            return []
        model, outside = self._streamed.model, self._work.within(None).asymmetric
        hidden, calls = starts(model, chain, self._batches)
        self._floats = FloatStream(model, chain, self._batches, calls, outside)
        return hidden

    def _begin(self, work: WorkDirectory, hidden: Sequence[Tensor]) -> HiddenStates:
        return write_hidden_states(work.path, 0, hidden, [(state.shape, state.dtype) for state in hidden])

    def _advance(
        self, work: WorkDirectory, block: str, calls: Calls, states: HiddenStates, pairs: Sequence[FoldPair]
    ) -> HiddenStates:
        """Calibrate a block and let the hidden states of all batches through it."""
        model = self._streamed.model
        original = self._floats.block(model.get_submodule(block), block, states) if self._floats else None
        self._round(block)
        runs = block_runs(model, block, calls, states, None)
        count = len(self._batches)
        faster, beside = ExitStack(), ExitStack()
        faster.enter_context(multiplying_in_float32(model.get_submodule(block)))
        if original is not None:
            beside.enter_context(multiplying_in_float32(original.module))
        together = self._fits_together(block, runs[0], streams=1 if original is None else 2)
        calibration = BlockCalibration(
            self._network,
            self._work.within(block),
            runs[:count],
            masks_of(self._batches),
            pairs=pairs,
            together=together,
            original=original,
            look=self._look(block, runs),
        )
        calibration.solve()

        def outputs() -> Iterator[Tensor]:
            yield from calibration.outputs()
            calibration.finish()
            faster.close()
            for run in runs[count:]:  # what the proof looks at goes through the packed layers
                yield run()
            yield from calibration.original_outputs()
            beside.close()

        return write_hidden_states(work.path, states.number + 1, outputs(), states.specs)

    def _look(self, block: str, runs: Sequence[Callable[[], Tensor]]) -> Callable[[], Tensor]:
        """A pass that shows the order of a block's layers: one of the proof's short ones, unless inputs choose them."""
        modules = self._streamed.model.get_submodule(block).modules()
        chosen = any(isinstance(module, nn.ModuleList) for module in modules)
        return runs[0] if chosen or len(runs) == len(self._batches) else runs[len(self._batches)]

    def _fits_together(self, block: str, run: Callable[[], Tensor], streams: int) -> bool:
        """Whether all batches may wait together in a block; blocks that are alike need as much."""
        module = self._streamed.model.get_submodule(block)
        kind = block_signature(self._network, block)
        if kind not in self._activations:
            self._activations[kind] = activations(module, run)
        return fits_together(module, self._activations[kind], len(self._batches), self._max_memory, streams)

    def _finish(self, chain: Sequence[str], calls: Calls, states: HiddenStates) -> Observation:
        """Solve what lies outside the blocks, and observe the model in memory."""
        model, count = self._streamed.model, len(self._batches)
        outside = self._work.within(None)

        def with_blocks_done(index: int, run: Callable[[], Any]) -> Any:
            return run_around(model, chain, states[index], calls[index][chain[0]].rest, run)

        def last_output(index: int) -> Tensor:
            return next(tensors_in(with_blocks_done(index, lambda: model(**self._batches[index]))))

        def observed(passes: Passes) -> list[Any]:
            reading = len(self._proof)
            found = [with_blocks_done(count + place, run) for place, run in enumerate(passes[:reading])]
            return found + [run() for run in passes[reading:]]

        if outside.tasks:
            runs = [partial(last_output, index) for index in range(count)]
            original = self._floats.whole(states) if self._floats else None
            calibrate(BlockCalibration(self._network, outside, runs, masks_of(self._batches), original=original))
        tie_up(self._network, self._plan.resolution)
        return observe(model, self._plan.source.directory, observed)

    def _round(self, block: str | None) -> None:
        """Quantize what needs no data in a block, or outside all blocks."""
        chosen = [
            assignment
            for name, assignment in self._plan.resolution.assignments.items()
            if assignment.site.block == block and name not in self._work.tasks
        ]
        for name, result in round_sites(self._network, chosen).items():
            self._results[name] = {"error": asdict(result.error), "notes": dict(result.notes)}

    def _take_note(self, task: Task, edit: Quantize, error: WeightError) -> None:
        self._results[task.site.name] = {"error": asdict(error), "notes": dict(edit.notes)}
        ratio = ""
        compared = "rtn_output_error" in edit.notes and not task.stage.asymmetric  # whose errors lack a constant
        if compared and float(edit.notes["rtn_output_error"]) > 0:
            share = float(edit.notes["output_error"]) / float(edit.notes["rtn_output_error"])
            ratio = f", output error {share:.0%} of rounding's"
        self._tell(f": {task.site.name.removeprefix(self._place[2]).strip('.')}{ratio}")

    def _tell(self, what: str) -> None:
        done, total, block = self._place
        self._progress(f"calibrating {block}{what} (peak {peak_memory() / 1e9:.1f} GB)", done, total)

    def _specs(self, chain: Sequence[str]) -> list[Specs]:
        return [tensor.outputs for block in (*chain, None) for tensor in self._planned(block)]

    def _planned(self, block: str | None) -> list[PlannedTensor]:
        blocks = self._streamed.blocks
        return [tensor for tensor in self._plan.tensors if block_of(tensor.parameter, blocks) == block]

    def _write(self, writer: ShardedWriter, block: str | None) -> None:
        """Write the tensors of a block, or those outside all blocks, in the order of the plan."""
        blocks, plan = self._streamed.blocks, self._plan
        sites = [site for site in self._network.sites if site.block == block]
        pieces = quantized_pieces(self._network, plan.resolution, self._names, sites)
        floats = float_tensors(self._network, self._names, lambda name: block_of(name, blocks) == block)
        produced = {entry.name: entry for entry in save_entries(pieces, floats, plan.format)}
        for planned in self._planned(block):
            if planned.assignment is None:
                writer.write(planned.name, _as_stored(planned, floats.get(planned.name)))
                continue
            tensors = produced[planned.name].produce()
            for name in planned.outputs:
                writer.write(name, tensors[name])


def _digest(value: Any) -> str:
    return hashlib.sha256(dump_json(value).encode()).hexdigest()


def _as_stored(planned: PlannedTensor, live: Tensor | None) -> Tensor:
    """A float tensor as the source stores it; where an algorithm changed it, the new values in the source's dtype."""
    original = planned.source.read()
    if live is None or torch.equal(original.to(live.dtype), live):
        return original
    return live.to(original.dtype)
