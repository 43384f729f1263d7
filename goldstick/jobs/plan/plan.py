"""Plan: what a recipe will do to a checkpoint, from its config and file headers alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from goldstick.algorithms import Distill
from goldstick.algorithms.stage import NetworkStage
from goldstick.calibration.float_types import refuse_float64
from goldstick.calibration.memory_budget import BASE_MEMORY as BASE_MEMORY
from goldstick.checkpoint.gguf.entries import GgufLayout, gguf_layout
from goldstick.checkpoint.source import ADAPTER_CONFIG, SourceCheckpoint
from goldstick.core.counts import counted
from goldstick.evaluation.tokenizer import find_context_length
from goldstick.formats.base import StorageFormat
from goldstick.hf.example_inputs import give_inputs, inputs_beside, inputs_for
from goldstick.hf.float_matrices import float_matrices
from goldstick.hf.generation_config import read_generation_config
from goldstick.hf.names import CheckpointNames, empty_model, model_class
from goldstick.hf.rehearsal import require_loadable
from goldstick.hf.source import float_config, open_source
from goldstick.jobs.load.front_matter import card_remarks, front_matter
from goldstick.jobs.load.importance import with_given_importance
from goldstick.jobs.load.importance_entries import importance_entries
from goldstick.jobs.plan.cache_refusal import refuse_without_cache
from goldstick.jobs.plan.choose_format import choose_format, loader_remarks
from goldstick.jobs.plan.forecast import calibration_seconds, streaming_seconds
from goldstick.jobs.plan.memory import memory_by_blocks
from goldstick.jobs.plan.planned_tensors import PlannedTensor, of_each_expert, read_tensors, with_outputs
from goldstick.jobs.plan.whole_model import whole_model_warning
from goldstick.recipes import Recipe
from goldstick.recipes.found_rotation import FoundRotation, find_rotation, turn_quantized
from goldstick.recipes.measured import resolve_recipe
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.rewriting_refusal import refuse_rewriting
from goldstick.structure.network import Network
from goldstick.structure.rotation.proof import LARGEST_PROVEN

_ADAPTER = (
    f"The adapter beside the weights ({ADAPTER_CONFIG}) is left out, and transformers with peft would load it. Where "
    "the model is meant with it, merge it first (peft's merge_and_unload) and quantize what is saved then."
)
_REQUANTIZED = (
    "Quantized from {}: its errors stay, and new ones come to them. Where the float model can be had, quantize that. "
    "What the recipe leaves out is stored dequantized."
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done to a checkpoint.

    Attributes:
        recipe: The recipe.
        source: The checkpoint.
        network: Its model on the meta device.
        resolution: What the recipe means for the network.
        format: The storage format, decided.
        tensors: Every tensor, in file order.
        warnings: What the user should know.
        rotation: What is turned first, found on the meta device with random weights; ``None`` for nothing.
    """

    recipe: Recipe
    source: SourceCheckpoint
    network: Network
    resolution: Resolution
    format: StorageFormat
    tensors: tuple[PlannedTensor, ...]
    warnings: tuple[str, ...]
    rotation: FoundRotation | None = None

    @property
    def bytes_before(self) -> int:
        """Bytes of the source's tensors."""
        return self.source.nbytes

    @property
    def bytes_after(self) -> int:
        """Bytes of the output's tensors."""
        return sum(tensor.bytes_after for tensor in self.tensors)

    @property
    def unforeseen(self) -> tuple[str, ...]:
        """Those of ``warnings`` that say what is known only after the run."""
        return tuple(dict.fromkeys(stage.unforeseen for stage in self.recipe.stages if stage.unforeseen))

    @property
    def unused(self) -> tuple[PlannedTensor, ...]:
        """Tensors that the model as transformers loads it has no use for."""
        return tuple(tensor for tensor in self.tensors if not tensor.parameter)

    @property
    def float_modules(self) -> list[str]:
        """Modules whose matrices stay float, as the checkpoint and the model call them."""
        floats = [tensor for tensor in self.tensors if tensor.assignment is None and len(tensor.source.shape) == 2]
        matrices = {tensor.name: tensor.parameter for tensor in floats}
        stored = {tensor.parameter for tensor in self.tensors}
        return float_matrices(self.network, matrices, self.resolution.assignments, stored)

    @property
    def read_late(self) -> tuple[Path, ...]:
        """Files of the source that are read when the model is whole in memory already."""
        return (*self.source.sidecars.values(), *dict.fromkeys(tensor.source.file for tensor in self.unused))

    @property
    def streams(self) -> bool:
        """Whether every tensor can be quantized on its own, without building the model."""
        return not self.calibrated and self.rotation is None and not self._obstructed and not self._acts_on_whole

    @property
    def by_blocks(self) -> bool:
        """Whether the blocks are worked on with one of them in memory: they are one chain, each stored whole."""
        lists = {block.rpartition(".")[0] for block in self.network.blocks}
        return not self.streams and len(lists) == 1 and not self._obstructed and not self._acts_on_whole

    @property
    def _acts_on_whole(self) -> bool:
        """Whether a stage needs the whole network in memory."""
        return bool(self.resolution.of(NetworkStage)) or self._distills

    @property
    def _distills(self) -> bool:
        return self.resolution.first(Distill) is not None

    @property
    def _obstructed(self) -> bool:
        """Whether a tensor needs the whole model in memory."""
        return any(tensor.obstacle for tensor in self.tensors)

    @property
    def calibrated(self) -> bool:
        """Whether a stage looks at data."""
        return needs_data(self.recipe.stages)

    @property
    def peak_memory(self) -> int:
        """Forecast of the peak resident memory in bytes: the base, and what one tensor needs while it is rounded."""
        return max(self.least_memory, BASE_MEMORY + self.proof_memory)

    @property
    def least_memory(self) -> int:
        """The same where no more is held than must be: calibration batches go one by one, nothing is proven whole."""
        if self.streams:
            return BASE_MEMORY + 3 * max((tensor.source.nbytes for tensor in self.tensors), default=0)
        return memory_by_blocks(self) if self.by_blocks else self.whole_memory

    @property
    def whole_memory(self) -> int:
        """The same where the whole model is in memory."""
        # Distillation keeps the float network and its weights beside what learns, which is float32.
        numbers = sum(tensor.source.shape.numel() for tensor in self.tensors)
        held = 3 * self.bytes_before + 4 * numbers if self._distills else 2 * self.bytes_before
        return BASE_MEMORY + max(held, self.proof_memory)

    @property
    def proof_memory(self) -> int:
        """Bytes of a float model and its float64 copy, where a rotation is proven on them; 0 where none is.

        See :func:`goldstick.structure.rotation.proof.prove_rotation`.
        """
        weights = sum(tensor.source.shape.numel() for tensor in self.tensors)
        return self.bytes_before + 8 * weights if self.rotation is not None and weights <= LARGEST_PROVEN else 0

    @property
    def streaming_seconds(self) -> float:
        """Forecast of the time in which all weights are read, rounded and written."""
        return streaming_seconds(self.recipe.stages, self.bytes_before)

    @property
    def seconds(self) -> float:
        """Forecast of the time in seconds."""
        if not self.calibrated:
            return self.streaming_seconds
        matrices = [tensor.source.shape for tensor in self.tensors if tensor.assignment]
        context = find_context_length(self.network.model, None)
        recipe = self.recipe
        return self.streaming_seconds + calibration_seconds(recipe.stages, matrices, recipe.calibration, context)


def make_plan(directory: Path, recipe: Recipe, inputs: Mapping[str, Tensor] | None = None) -> Plan:
    """Plan a recipe for a checkpoint directory; reads its config and file headers only.

    Args:
        directory: The float model.
        recipe: What to do with it.
        inputs: Keyword arguments of its forward to try it with, where goldstick cannot know any.

    Raises:
        SourceError: The directory is no readable float model, or one in float64.
        RecipeError: The recipe is illegal for the model.
        FormatError: The storage format the recipe asks for cannot hold the result.
    """
    refuse_rewriting(recipe.stages, f"the model of {directory}")
    source = open_source(directory)
    settings, cls = float_config(directory), model_class(source.config, str(directory))
    model = empty_model(settings, cls, len(source.tensors))
    read_generation_config(directory, model)
    give_inputs(model, inputs if inputs is not None else inputs_beside(directory))
    names = CheckpointNames(model)
    rehearsed = empty_model(copy.deepcopy(settings), cls, len(source.tensors))
    require_loadable(directory, rehearsed, names, source.tensors)
    network = Network(model)
    ties = network.tied()
    rotation = find_rotation(recipe.stages, network, partial(inputs_for, model))
    if rotation is not None:
        network = Network(model, cut=rotation.plan.unties)
    resolution = with_given_importance(resolve_recipe(recipe, network), network)
    rotation, resolution = turn_quantized(rotation, resolution)
    refuse_without_cache(model, resolution)
    if resolution.assignments:
        named = {"dtype of config.json": model.config.dtype}
        stored = {info.name: info.dtype for info in source.tensors.values()}
        remedy = "Convert it to float32 first: load it with transformers and dtype=torch.float32, and save_pretrained."
        refuse_float64(named | stored, str(directory), remedy)
    tensors = of_each_expert(read_tensors(source, network, resolution, names, ties), network)
    layers = [tensor.stored for tensor in tensors if tensor.stored]
    chosen, warnings = choose_format(recipe.export.format, layers, resolution.ties)
    warnings += loader_remarks(chosen, layers, model)
    warnings += card_remarks(directory)
    planned = tuple(with_outputs(tensor, chosen) for tensor in tensors)
    if unused := [tensor.name for tensor in planned if not tensor.parameter]:
        more = f" and {counted(len(unused) - 3, 'more tensor')}" if len(unused) > 3 else ""
        how = "carried on dequantized" if source.quantized_as else "copied as they are"
        warnings.insert(0, f"Not used by the model as transformers loads it, and {how}: {', '.join(unused[:3])}{more}.")
    if (directory / ADAPTER_CONFIG).is_file():
        warnings.insert(0, _ADAPTER)
    if source.quantized_as:
        warnings.insert(0, _REQUANTIZED.format(source.quantized_as))
    obstacles = [f"{tensor.name}: {tensor.obstacle}" for tensor in planned if tensor.obstacle]
    if obstacles:
        warnings.append(f"The whole model is built in memory, since {obstacles[0]}.")
    made = Plan(
        recipe=recipe,
        source=source,
        network=network,
        resolution=resolution,
        format=chosen,
        tensors=planned,
        warnings=tuple(warnings),
        rotation=rotation,
    )
    if not made.streams and not made.by_blocks and not obstacles:
        made = dataclasses.replace(
            made, warnings=(*made.warnings, whole_model_warning(made.resolution, made.calibrated))
        )
    made = dataclasses.replace(made, warnings=(*made.unforeseen, *made.warnings))
    if chosen.in_gguf:
        planned_gguf(made)
    return made


def planned_gguf(plan: Plan, audit: Mapping[str, Any] | None = None, saved_as: str = "") -> GgufLayout | None:
    """What the GGUF file of a plan will hold beside its tensors; ``None`` for other formats.

    Args:
        plan: The plan.
        audit: Of the calibration data, when they were seen.
        saved_as: Name of the file that keeps, as an importance matrix, what was measured of them.

    Raises:
        FormatError: The model, a tensor or the tokenizer has no place in a GGUF file.
    """
    if not plan.format.in_gguf:
        return None
    model: Any = plan.network.model
    outputs = {name: spec for tensor in plan.tensors for name, spec in tensor.outputs.items()}
    directory = plan.source.directory
    card, _ = front_matter(directory / "README.md")
    layout = gguf_layout(outputs, model.config.to_dict(), directory, directory.resolve().name, card)
    entries = importance_entries(plan.resolution, plan.network, audit or {}, saved_as)
    return dataclasses.replace(layout, metadata={**layout.metadata, **entries})
