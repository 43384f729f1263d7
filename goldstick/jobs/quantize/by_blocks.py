"""By blocks: carry out a plan with one block of the model in memory, journaling every block that is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import block_calls
from goldstick.calibration.data.samples import CalibrationSet
from goldstick.calibration.held_out import apart
from goldstick.calibration.scale_fold_targets import small
from goldstick.calibration.task import Work
from goldstick.calibration.validation import calibration_warnings
from goldstick.checkpoint.hidden_states import HiddenStates, Specs
from goldstick.checkpoint.journal import WorkDirectory
from goldstick.checkpoint.kv_cache import StoredKV
from goldstick.checkpoint.measured_importance import read_measured, write_measured
from goldstick.checkpoint.shards import ShardedWriter
from goldstick.checkpoint.working_directory import SHARDS
from goldstick.core.division import slow_ranks
from goldstick.core.error import WeightError
from goldstick.core.freed_memory import give_large_blocks_back, return_freed_memory
from goldstick.core.progress import Progress
from goldstick.core.ranks import Ranks
from goldstick.core.signals import uninterrupted
from goldstick.errors import StructureError
from goldstick.hf.example_inputs import give_inputs, given_inputs
from goldstick.hf.names import CheckpointNames
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.proof.observation import Observation, model_inputs
from goldstick.jobs.quantize.block_tensors import BlockTensors
from goldstick.jobs.quantize.blockwise_model import BlockwiseModel
from goldstick.jobs.quantize.commits import Commits
from goldstick.jobs.quantize.gather import gathered
from goldstick.jobs.quantize.resting import let_layers_rest
from goldstick.jobs.quantize.rotation_by_blocks import prove_where_it_fits
from goldstick.jobs.quantize.states_of_ranks import Beginning, StatesOfRanks
from goldstick.jobs.quantize.write import Calibrate, WriteResult
from goldstick.jobs.save.pieces import kv_to_store
from goldstick.recipes.run import calibrated_work
from goldstick.structure.calls import called_before
from goldstick.structure.trace import on_device


def prepare(
    plan: Plan,
    device: torch.device,
    calibrate: Calibrate | None,
    max_memory: int,
    progress: Progress,
    ranks: Ranks | None = None,
    saved_as: str = "",
) -> BlockwiseRun | None:
    """A run over the blocks, or ``None`` where the plan needs none, or its model cannot be taken apart into blocks."""
    if not plan.by_blocks or (plan.calibrated and calibrate is None):
        return None
    give_large_blocks_back(scarce=True)
    streamed = StreamedModel(plan.source.directory, dequantized=True, device=device)
    give_inputs(streamed.model, given_inputs(plan.network.model))
    if streamed.blocks != plan.network.blocks:  # not all are modules that are called
        give_large_blocks_back()
        return None
    data = calibrate(streamed.model) if plan.calibrated and calibrate is not None else None
    proof = model_inputs(streamed.model, plan.source.directory)
    work = calibrated_work(plan.network, plan.resolution, lambda task, edit, error: None)
    let_layers_rest(streamed, work, device)
    streamed.load(streamed.blocks[0])
    batch = small(data.batches()[0] if data is not None else proof[0])
    try:
        early = _calibrated_before(work, streamed, on_device(batch, device))
    except StructureError:
        early = True
    if early:
        give_large_blocks_back()
        return None
    return BlockwiseRun(plan, streamed, data, proof, max_memory, progress, ranks or Ranks(device=device), saved_as)


def _calibrated_before(work: Work, streamed: StreamedModel, batch: Mapping[str, Any]) -> bool:
    """Whether layers before the blocks are to be calibrated, such as a patch embedding.

    They are solved last, and then what went through the blocks is no longer what the finished model gives.

    Raises:
        StructureError: The model cannot be taken apart into blocks.
    """
    model, blocks = streamed.model, streamed.blocks
    outside = work.within(None).tasks.values()
    first = model.get_submodule(blocks[0])
    seen: list[nn.Module] = []
    modules = {first, *(model.get_submodule(task.site.module) for task in outside)}
    with called_before(modules, lambda module, args, kwargs: seen.append(module)):
        block_calls(model, blocks, batch)
    return seen.index(first) > 0


class BlockwiseRun:
    """One run over the blocks of a checkpoint.

    Args:
        plan: What to do; its model is one chain of blocks.
        streamed: The plan's model, read block by block.
        data: Calibration data; ``None`` where no stage looks at any.
        proof: Keyword arguments of each call of the model that its proof makes.
        max_memory: Bytes that may be used.
        progress: Told what is done.
        ranks: Who does it together: the first writes, the others :meth:`assist`.
        saved_as: Name of the file that keeps how large the inputs of each site are; empty where nothing is to.

    Attributes:
        data: Calibration data.
    """

    def __init__(
        self,
        plan: Plan,
        streamed: StreamedModel,
        data: CalibrationSet | None,
        proof: Sequence[Mapping[str, Any]],
        max_memory: int,
        progress: Progress,
        ranks: Ranks,
        saved_as: str = "",
    ) -> None:
        self._saved_as = saved_as
        self._plan, self._max_memory, self._progress = plan, max_memory, progress
        self._names = CheckpointNames(plan.network.model)
        self._rotation_error: float | None = None
        batches = apart(data.batches() if data is not None else [], plan.resolution.holdout)
        self._model = BlockwiseModel(plan, streamed, batches, proof, max_memory, progress, ranks, bool(saved_as))
        self.data, self._audit = data, data.audit() if data is not None else {}
        self._ranks = ranks
        self._sharing = StatesOfRanks(ranks, len(batches), len(proof))

    @torch.no_grad()
    def write(self, work: WorkDirectory, check_source: Callable[[], None]) -> WriteResult:
        """Do what is not yet done, in ``work``.

        Args:
            work: Where.
            check_source: Raises where the source is no longer what it was; no block that was read of such a one counts.
        """
        journal = work.journal()
        done: int = journal.get("blocks_done", 0)
        shards = work.path / SHARDS if self._plan.format.in_gguf else work.checkpoint
        shards.mkdir(exist_ok=True)
        if not journal:
            for left in shards.iterdir():
                left.unlink()
        elif done:
            HiddenStates.remove(work.path, done - 1)  # of a run that was cut short right after its last word
        if self._plan.rotation is not None:
            proven = journal["rotation_error"] if journal else prove_where_it_fits(self._plan, self._max_memory)
            self._rotation_error = proven
        model, blocks = self._model, self._model.blocks
        self._ranks.of(Beginning(blocks_done=done, anew=not journal, cache=journal.get("kv_cache", {})))
        commits = Commits(work.path, done, self._ranks.device, self._max_memory)
        made = self._plan.bytes_after * (2 if self._plan.format.in_gguf else 1)  # one file is made of the shards

        def told(states: int) -> None:
            if done < len(blocks):
                commits.require_space(made, self._ranks.count * states)

        starts = model.start(done, journal.get("sites", {}), journal.get("kv_cache", {}), told)
        first, specs = self._begin(work, starts, journal, commits)
        for number in range(done if self._saved_as else 0):
            model.measured |= read_measured(work.path, number)
        if done:
            model.release(blocks[0])
        kv = self._kv_to_store()
        tensors = BlockTensors(self._plan, model.network, blocks, self._names, kv.tensors if kv else {})
        limit = self._plan.recipe.export.max_shard_size
        writer = ShardedWriter(shards, tensors.specs(), limit, journal.get("files"))

        def write(block: str, outputs: Iterator[Tensor]) -> Sequence[Tensor]:
            """Write a block and what it gives, and let go of it."""
            index = blocks.index(block)
            kept = commits.kept(index + 1, self._sharing.to_first(outputs), specs)
            give_large_blocks_back(scarce=True)  # the next block's weights would fill the heap for good
            tensors.write(writer, block)
            check_source()
            if self._saved_as:
                inside = {name: squares for name, squares in model.measured.items() if name.startswith(f"{block}.")}
                write_measured(work.path, index, inside)
            if isinstance(kept, HiddenStates):
                progress = {"blocks_done": index + 1, "hidden": kept.sha256, **self._found()}
                with uninterrupted():
                    work.commit(progress | {"files": writer.state()})
                commits.done(index + 1)
            model.release(block)
            return_freed_memory()
            return self._sharing.own(kept)

        states = self._sharing.own(first)
        try:
            loop = model.loop(write)
            for block in blocks[done:]:
                states = loop.advance(block, states)
            ranks = self._ranks.account()
            expected, not_run = model.finish(states)
            kv = self._kv_to_store()
            tensors.write(writer, None)
            tensors.write_cache(writer, kv.tensors if kv else {})
            hashes = writer.close()
        finally:
            writer.abandon()
            give_large_blocks_back()
        hashes = gathered(self._plan, shards, work.checkpoint, hashes, self._progress, self._audit, self._saved_as)
        for left in work.checkpoint.iterdir():  # of a run that was cut short behind this point
            if left.name not in hashes:
                left.unlink()
        return self._write_result(hashes, expected, not_run, kv, ranks)

    @torch.no_grad()
    def assist(self) -> None:
        """What a rank that is not the first does of :meth:`write`: all but writing."""
        model, blocks = self._model, self._model.blocks
        beginning: Beginning = self._ranks.of(Beginning())
        states: Sequence[Tensor] = model.start(beginning.blocks_done, {}, beginning.cache)
        if beginning.anew:
            self._sharing.specs(states)
            states = self._sharing.held(list(self._sharing.to_first(iter(states))))
        else:
            states = self._sharing.given(None)
        if beginning.blocks_done:
            model.release(blocks[0])

        def keep(block: str, outputs: Iterator[Tensor]) -> Sequence[Tensor]:
            found = self._sharing.held(list(self._sharing.to_first(outputs)))
            model.release(block)
            return_freed_memory()
            return found

        loop = model.loop(keep)
        for block in blocks[beginning.blocks_done :]:
            states = loop.advance(block, states)
        self._ranks.account()
        model.finish(states)

    def _begin(
        self, work: WorkDirectory, hidden: Sequence[Tensor], journal: Mapping[str, Any], commits: Commits
    ) -> tuple[Sequence[Tensor], Specs]:
        """The hidden states that the first block that is not done is given, and what they are."""
        if journal:
            found = HiddenStates(work.path, journal["blocks_done"], journal["hidden"])
            self._sharing.given(found)
            return found, found.specs
        specs = self._sharing.specs(hidden)
        return commits.kept(0, self._sharing.to_first(iter(hidden)), specs), specs

    def _found(self) -> dict[str, Any]:
        """What the journal remembers of the finished blocks, beside their tensors and hidden states."""
        found: dict[str, Any] = {"sites": self._model.results}
        if self._plan.rotation is not None:
            found["rotation_error"] = self._rotation_error
        if self._model.cache is not None:
            found["kv_cache"] = self._model.cache.state
        return found

    def _kv_to_store(self) -> StoredKV | None:
        settings = self._model.cache.settings if self._model.cache is not None else None
        return kv_to_store(self._model.network, settings, self._plan.format, self._names)

    def _write_result(
        self,
        hashes: dict[str, str],
        expected: Observation | None,
        not_run: str,
        kv: StoredKV | None,
        ranks: Mapping[str, Any],
    ) -> WriteResult:
        account: dict[str, Any] = {}
        slow = slow_ranks(ranks.get("work_seconds", ()))
        if self._plan.rotation is not None:
            account["rotation"] = self._plan.rotation.to_dict(self._rotation_error)
        if kv is not None:
            account["kv_cache"] = {"scheme": kv.label}
        results = self._model.results
        notes = {name: found["notes"] for name, found in results.items()}
        return WriteResult(
            hashes=hashes,
            layers=[tensor.stored for tensor in self._plan.tensors if tensor.stored],
            errors={name: WeightError(**found["error"]) for name, found in results.items()},
            notes=notes,
            expected=expected,
            not_run=not_run,
            audit=self._audit,
            warnings=[*(self.data.warnings() if self.data is not None else ()), *calibration_warnings(notes), *slow],
            kv=kv,
            account=account,
            ranks=ranks,
            measured=self._model.measured,
        )
