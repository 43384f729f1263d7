"""Every tensor of a source and what becomes of it, from the file headers alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from goldstick.errors import SourceError
from goldstick.formats import StorageFormat
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.formats.safetensors_file import TensorInfo
from goldstick.formats.source import SourceCheckpoint
from goldstick.formats.transformers_names import CheckpointNames
from goldstick.pipeline.entries import Specs, specs_nbytes
from goldstick.recipes.resolve import Assignment, Resolution
from goldstick.structure.network import Layout, Network

_WHOLE = (Layout.LINEAR, Layout.TRANSPOSED, Layout.CONV2D, Layout.EMBEDDING)
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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


def read_tensors(
    source: SourceCheckpoint,
    network: Network,
    resolution: Resolution,
    names: CheckpointNames,
    tied: Mapping[str, str],
) -> list[PlannedTensor]:
    """Every tensor of a source, and the copies of those whose tie is cut; without ``outputs``, which a format gives.

    Args:
        source: The source.
        network: Its model on the meta device.
        resolution: What the recipe means for it.
        names: How its checkpoint names tensors.
        tied: The ties of the model: parameter → owner.

    Raises:
        SourceError: A parameter is missing, or is no float weight, or is of another shape than the model's.
    """
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
            scale_dtype=scale_dtype(info.dtype),
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


def with_outputs(tensor: PlannedTensor, chosen: StorageFormat) -> PlannedTensor:
    """The tensor with what a storage format writes for it."""
    if tensor.stored is None:
        return dataclasses.replace(tensor, outputs={tensor.name: (tensor.source.shape, tensor.source.dtype)})
    specs = chosen.specs(tensor.stored, scale_dtype(tensor.source.dtype))
    return dataclasses.replace(tensor, outputs={part_name(tensor.name, suffix): spec for suffix, spec in specs.items()})


def scale_dtype(weight_dtype: torch.dtype) -> torch.dtype:
    """The dtype scales are stored in: the weight's where it has 16 bits, float32 otherwise."""
    return weight_dtype if weight_dtype in (torch.float16, torch.bfloat16) else torch.float32
