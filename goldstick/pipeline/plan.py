"""Plan: what a recipe will do to a checkpoint, from its config and file headers alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from goldstick.errors import SourceError
from goldstick.formats import StorageFormat
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.formats.safetensors_file import TensorInfo
from goldstick.formats.source import SourceCheckpoint, open_source
from goldstick.formats.transformers_names import CheckpointNames, empty_model, load_config, model_class
from goldstick.pipeline.choose_format import choose_format
from goldstick.pipeline.entries import Specs, specs_nbytes
from goldstick.pipeline.whole_network import inputs_for, refuse_without_cache
from goldstick.recipes import Recipe
from goldstick.recipes.resolve import Assignment, Resolution, resolve
from goldstick.recipes.rotate import FoundRotation, find_rotation
from goldstick.recipes.run import needs_data
from goldstick.structure.blocks import block_of
from goldstick.structure.network import Layout, Network
from goldstick.structure.rotation_proof import LARGEST_PROVEN

_WHOLE = (Layout.LINEAR, Layout.TRANSPOSED, Layout.CONV2D, Layout.EMBEDDING)
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: What Python, torch and transformers take before any weight is read, measured, in bytes.
BASE_MEMORY = 600_000_000
#: Bytes per second of reading, rounding and writing on one core, measured with range search minmax.
STREAM_SPEED = 150_000_000
#: Floating-point operations per second of a float32 matrix product on two cores, measured.
MATMUL_SPEED = 100_000_000_000


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """One tensor of the source and what becomes of it.

    Attributes:
        source: Where it is read.
        name: Its name in the output (another only for a weight that is untied).
        parameter: The model parameter it belongs to; empty where the model has no use for it.
        assignment: What happens to it, or ``None`` where it is copied.
        stored: How it is stored when quantized.
        outputs: The tensors written for it.
        obstacle: Why it cannot be quantized on its own while streaming, or ``None``.
    """

    source: TensorInfo
    name: str
    parameter: str
    assignment: Assignment | None
    stored: StoredLayer | None
    outputs: Specs
    obstacle: str | None = None

    @property
    def bytes_after(self) -> int:
        """Bytes written for it."""
        return specs_nbytes(self.outputs)


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
    def streams(self) -> bool:
        """Whether every tensor can be quantized on its own, without building the model."""
        return not self.calibrated and not self._needs_whole

    @property
    def by_blocks(self) -> bool:
        """Whether the blocks can be calibrated with one of them in memory: they are one chain, each stored whole."""
        lists = {block.rpartition(".")[0] for block in self.network.blocks}
        return self.calibrated and len(lists) == 1 and not self._needs_whole

    @property
    def _needs_whole(self) -> bool:
        """Whether a tensor, or a stage, needs the whole model in memory."""
        whole = self.rotation is not None or self.resolution.kv is not None
        return whole or any(tensor.obstacle for tensor in self.tensors)

    @property
    def calibrated(self) -> bool:
        """Whether a stage looks at data."""
        return needs_data(self.recipe.stages)

    @property
    def peak_memory(self) -> int:
        """Forecast of the peak resident memory in bytes: the base, and what one tensor needs while it is rounded."""
        largest = max((tensor.source.nbytes for tensor in self.tensors), default=0)
        if self.streams:
            return BASE_MEMORY + 3 * largest
        if not self.by_blocks:
            weights = sum(tensor.source.shape.numel() for tensor in self.tensors)
            proof = 8 * weights if self.rotation is not None and weights <= LARGEST_PROVEN else 0  # a float64 copy
            return BASE_MEMORY + max(2 * self.bytes_before, self.bytes_before + proof)
        sizes: dict[str | None, int] = {}
        for tensor in self.tensors:
            block = block_of(tensor.parameter, self.network.blocks)
            sizes[block] = sizes.get(block, 0) + tensor.source.nbytes
        outside = sizes.pop(None, 0)
        widest = max((tensor.assignment.site.in_features for tensor in self.tensors if tensor.assignment), default=0)
        return int(BASE_MEMORY + outside + 2.5 * max(sizes.values()) + 4 * 8 * widest**2)

    @property
    def seconds(self) -> float:
        """Forecast of the time in seconds."""
        searched = any(getattr(stage, "range_search", "minmax") != "minmax" for stage in self.recipe.stages)
        streaming = self.bytes_before / STREAM_SPEED * (8 if searched else 1) + 5
        if not self.calibrated:
            return streaming
        # One forward pass, and one Hessian of about the same cost.
        tokens = self.recipe.calibration.samples * self.recipe.calibration.seq_len
        weights = sum(tensor.source.shape.numel() for tensor in self.tensors if tensor.assignment)
        return streaming + 2 * 2 * weights * tokens / MATMUL_SPEED


def make_plan(directory: Path, recipe: Recipe) -> Plan:
    """Plan a recipe for a checkpoint directory; reads its config and file headers only.

    Raises:
        SourceError: The directory is no readable float model.
        RecipeError: The recipe is illegal for the model.
        FormatError: The storage format the recipe asks for cannot hold the result.
    """
    source = open_source(directory)
    model = empty_model(load_config(directory), model_class(source.config, str(directory)))
    network = Network(model)
    ties = network.tied()
    rotation = find_rotation(recipe.stages, network, inputs_for(model))
    if rotation is not None:
        network = Network(model, cut=rotation.plan.unties)
    resolution = resolve(recipe.stages, network)
    refuse_without_cache(model, resolution)
    names = CheckpointNames(model)
    tensors = _read_tensors(source, network, resolution, names, ties)
    chosen, warnings = choose_format(
        recipe.export.format, [tensor.stored for tensor in tensors if tensor.stored], resolution.ties
    )
    planned = tuple(_with_outputs(tensor, chosen) for tensor in tensors)
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
    fate = "it is copied as it is" if made.streams or made.by_blocks else "it is left out"
    unused = [tensor.name for tensor in planned if not tensor.parameter]
    warnings = [f"{name} is not used by the model as transformers loads it; {fate}." for name in unused] + warnings
    made = dataclasses.replace(made, warnings=tuple(warnings))
    if not made.streams and not made.by_blocks and not obstacles:
        reason = "while it is calibrated" if made.calibrated else "since its recipe acts on it as a whole"
        whole = f"The whole model is held in memory {reason}, and a run that is stopped starts anew."
        made = dataclasses.replace(made, warnings=(*made.warnings, whole))
    return made


def _read_tensors(
    source: SourceCheckpoint,
    network: Network,
    resolution: Resolution,
    names: CheckpointNames,
    tied: Mapping[str, str],
) -> list[PlannedTensor]:
    sites = {site.parameter_name: site for site in network.sites}
    state = network.model.state_dict()
    tensors = []
    stored: set[str] = set()
    for info in source.tensors.values():
        piece = names.piece(info.name)
        known = piece.parameter in state
        site = sites.get(piece.parameter)
        assignment = resolution.assignments.get(site.name) if site else None
        tensors.append(_planned(info, info.name, piece.parameter if known else "", piece.by_rows, assignment))
        stored.update((piece.parameter, *piece.others))
    for name, _ in network.model.named_parameters(remove_duplicate=False):
        if name not in stored and tied.get(name, name) not in stored:
            raise SourceError(f"{source.directory} lacks the parameter {name!r} that its config calls for.")
    if resolution.untied:
        tensors.extend(_untied_copies(network, resolution, names, tensors, tied))
    return tensors


def _planned(
    info: TensorInfo, name: str, parameter: str, by_rows: bool, assignment: Assignment | None
) -> PlannedTensor:
    stored = obstacle = None
    if assignment is not None:
        site = assignment.site
        matrix = site.layout.to_matrix(torch.empty(info.shape, device="meta"))
        if info.dtype not in _FLOATS:
            raise SourceError(
                f"{info.name} is stored as {info.dtype}, which is no float weight; this checkpoint is quantized "
                "already."
            )
        if by_rows and site.layout in _WHOLE and info.shape != site.shape:
            raise SourceError(
                f"{info.name} has the shape {tuple(info.shape)} in {info.file.name} and {tuple(site.shape)} in the "
                "model of its config: config.json and weights do not belong together. Fetch the checkpoint again."
            )
        if not by_rows or matrix.shape[-1] != site.in_features:
            obstacle = "the checkpoint stores it in another arrangement than the model"
        stored = StoredLayer(
            name=name,
            site=site.name,
            kind="experts" if site.layout is Layout.TRANSPOSED_EXPERTS else site.layout.value,
            shape=matrix.shape,
            scheme=assignment.scheme,
            fractional_zeros=assignment.stage.fractional_zeros,
            multiplied=assignment.multiplied,
        )
    return PlannedTensor(
        source=info,
        name=name,
        parameter=parameter,
        assignment=assignment,
        stored=stored,
        outputs={},
        obstacle=obstacle,
    )


def _untied_copies(
    network: Network,
    resolution: Resolution,
    names: CheckpointNames,
    tensors: Sequence[PlannedTensor],
    tied: Mapping[str, str],
) -> list[PlannedTensor]:
    """The ends of cut ties that the checkpoint does not store, read from the other end."""
    stored = {tensor.parameter: tensor for tensor in tensors}
    sites = {site.parameter_name: site for site in network.sites}
    copies = []
    for parameter, owner in tied.items():
        if parameter in stored or owner not in stored:
            continue
        site = sites.get(parameter)
        (name,) = names.to_checkpoint({parameter: torch.empty(0)})
        assignment = resolution.assignments.get(site.name) if site else None
        copies.append(_planned(stored[owner].source, name, parameter, True, assignment))
    return copies


def _with_outputs(tensor: PlannedTensor, chosen: StorageFormat) -> PlannedTensor:
    if tensor.stored is None:
        return dataclasses.replace(tensor, outputs={tensor.name: (tensor.source.shape, tensor.source.dtype)})
    specs = chosen.specs(tensor.stored, scale_dtype(tensor.source.dtype))
    return dataclasses.replace(tensor, outputs={part_name(tensor.name, suffix): spec for suffix, spec in specs.items()})


def scale_dtype(weight_dtype: torch.dtype) -> torch.dtype:
    """The dtype scales are stored in: the weight's where it has 16 bits, float32 otherwise."""
    return weight_dtype if weight_dtype in (torch.float16, torch.bfloat16) else torch.float32
