"""The importance matrix of a float model, measured on calibration data as a calibrated run does; nothing is rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from goldstick.calibration.block_loop import Batches, BlockLoop, starts
from goldstick.calibration.memory_budget import activations, default_budget, fits_together, require_memory
from goldstick.calibration.sweep import prepare_experts, sweep
from goldstick.calibration.task import Work
from goldstick.checkpoint.hidden_states import HiddenStates, name_of, write_hidden_states
from goldstick.core.freed_memory import give_large_blocks_back, return_freed_memory
from goldstick.core.input_squares import InputSquares
from goldstick.core.json_files import check_writable
from goldstick.core.progress import Progress, quiet
from goldstick.core.temporary_folder import temporary_folder
from goldstick.core.torch_modes import as_written
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.importance.left_alone import measuring_work
from goldstick.jobs.load.calibration_inputs import calibration_inputs, require_calibration
from goldstick.jobs.load.importance import save_importance
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import Plan, make_plan
from goldstick.jobs.quantize.asked_importance import check_importance
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from goldstick.structure.network import Network, Site

#: Looks at every layer that recipes round by default, of whatever width.
LOOKING = {"stages": [{"rtn": {"scheme": "w8a16", "range_search": "imatrix"}}]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredImportance:
    """What was written.

    Attributes:
        layers: Of how many layers.
        audit: Of which calibration data.
    """

    layers: int
    audit: Mapping[str, int | float | str]


@as_written()
def measure_importance(
    directory: Path,
    text: Calibration,
    file: Path,
    *,
    data_dir: Path | None = None,
    overwrite: bool = False,
    max_memory: int | None = None,
    progress: Progress = quiet,
) -> MeasuredImportance:
    """Write the importance matrix of a float model: Σ x² of every column of every layer's inputs.

    The layers of the repeated blocks, as llama.cpp's own tool measures them; the head and embeddings are left out. One
    block is in memory at a time, where the model is one chain of blocks.

    Args:
        directory: A checkpoint directory; one that is quantized is measured as the float model that its codes mean.
        text: The calibration data.
        file: The GGUF file to write.
        data_dir: Where sets of text known by name lie.
        overwrite: Whether it may be replaced.
        max_memory: Bytes that the run may use; a good part of what is free where ``None``.
        progress: Told what is done.

    Raises:
        FormatError: The model, or a layer of it, has no place in GGUF files.
        DataError: The data are missing, malformed or too few.
        OutputError: The file exists, or cannot be written.
        UsageError: ``max_memory`` is less than the run holds at least, or the package ``gguf`` is not installed.
    """
    check_writable(file, overwrite=overwrite)
    recipe = Recipe.load(LOOKING).model_copy(update={"calibration": text})
    plan = make_plan(directory, recipe)
    check_importance(plan, file, overwrite=overwrite)
    require_calibration(recipe, directory, data_dir)
    require_memory(max_memory, plan.least_memory)
    calibrate = calibration_inputs(text, directory, data_dir)
    found: dict[str, InputSquares] = {}

    def keep(site: Site, squares: InputSquares) -> None:
        found[site.name] = squares

    streamed = _streamed(plan)
    model = load_float(directory) if streamed is None else streamed.model
    network = Network(model)
    data = calibrate(model)
    work = measuring_work(network, plan.resolution, keep)
    if streamed is None:
        sweep(network, work, data.batches(), progress)
    else:
        files = [name_of(number) for number in range(len(streamed.blocks) + 1)]
        with temporary_folder("importance", files, file.absolute().parent) as folder:
            budget = default_budget() if max_memory is None else max_memory
            _Blocks(streamed, network, work, folder, budget, progress).measure(data.batches())
    save_importance(file, found, plan.network, data.audit(), replace=overwrite)
    return MeasuredImportance(layers=len(found), audit=data.audit())


def _streamed(plan: Plan) -> StreamedModel | None:
    """The model read block by block; ``None`` where its layers are not all in one chain of blocks."""
    if not plan.by_blocks or any(task.site.block is None for task in plan.resolution.assignments.values()):
        return None
    give_large_blocks_back(scarce=True)
    streamed = StreamedModel(plan.source.directory, dequantized=True)
    if streamed.blocks != plan.network.blocks:  # not all are modules that are called
        give_large_blocks_back()
        return None
    return streamed


class _Blocks:
    """One pass over the blocks of a model that lies on disk, with the hidden states in files."""

    def __init__(
        self, streamed: StreamedModel, network: Network, work: Work, folder: Path, budget: int, progress: Progress
    ) -> None:
        self._streamed, self._network, self._work = streamed, network, work
        self._folder, self._budget, self._progress = folder, budget, progress

    @torch.no_grad()
    def measure(self, batches: Batches) -> None:
        """Let the batches through all blocks."""
        blocks, model = self._streamed.blocks, self._streamed.model
        self._streamed.load(blocks[0])
        prepare_experts(self._network, self._work)
        states: Sequence[Tensor]
        states, calls = starts(model, blocks, batches)
        self._streamed.release_outside()
        specs = [(state.shape, state.dtype) for state in states]

        def load(block: str) -> nn.Module | None:
            self._progress(f"measuring {block}", blocks.index(block), len(blocks))
            if block != blocks[0]:
                self._streamed.load(block)
            return None

        def write(block: str, outputs: Iterator[Tensor]) -> Sequence[Tensor]:
            number = blocks.index(block)
            found = write_hidden_states(self._folder, number + 1, outputs, specs)
            HiddenStates.remove(self._folder, number)
            self._streamed.release(block)
            return_freed_memory()
            return found

        loop = BlockLoop(
            network=self._network, work=self._work, batches=batches, calls=calls, load=load, write=write,
            fits_together=lambda block, run, models: fits_together(
                model.get_submodule(block), activations(model.get_submodule(block), run), len(batches), self._budget
            ),
        )  # fmt: skip
        try:
            for block in blocks:
                states = loop.advance(block, states)
        finally:
            give_large_blocks_back()
        self._progress("measuring", len(blocks), len(blocks))
