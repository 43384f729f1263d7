"""Every tensor of a source and what becomes of it, from the file headers alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from goldstick.checkpoint.derived_tensor import DerivedTensor
from goldstick.checkpoint.entries import Specs, specs_nbytes
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import SourceCheckpoint
from goldstick.core.layout import Layout
from goldstick.core.qtensor import scale_dtype
from goldstick.errors import SourceError
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.hf.names import CheckpointNames
from goldstick.jobs.load.importance import GgufPlaces, of_tensor
from goldstick.recipes.resolve import Assignment, Resolution
from goldstick.structure.network import Network

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
        SourceError: A weight to be quantized is no float weight.
    """
    sites = {site.parameter_name: site for site in network.sites}
    state = network.model.state_dict()
    tensors = []
    given: dict[str, list[TensorInfo]] = {}
    for info in source.tensors.values():
        piece = names.piece(info.name)
        known = piece.parameter in state
        site = sites.get(piece.parameter)
        assignment = resolution.assignments.get(site.name) if site else None
        read = info if assignment is None else _as_run(info, network, piece.parameter)
        tensors.append(_planned(read, info.name, piece.parameter if known else "", piece.by_rows, assignment))
        if known and piece.by_rows:
            given[piece.parameter] = [*given.get(piece.parameter, ()), info]
    if resolution.stores_ties_apart(network):
        tensors.extend(_untied_copies(network, resolution, names, tensors, tied))
    for parameter, infos in given.items():
        if sum(info.shape.numel() for info in infos) > state[parameter].numel():
            raise SourceError(
                f"{source.directory} holds {parameter} more than once: as {infos[0].name} and as {infos[1].name}. "
                "Remove the one that the model does not mean."
            )
    _refuse_missing(source, resolution, tensors)
    _refuse_strays(tensors)
    return tensors


def _as_run(info: TensorInfo, network: Network, parameter: str) -> TensorInfo:
    """A weight in the dtype that transformers gives it, which is that of the config where files hold it in another."""
    model: Any = network.model
    dtype = getattr(getattr(model, "config", None), "dtype", None)
    if dtype not in _FLOATS or info.dtype not in _FLOATS:
        return info
    kept = [*(getattr(model, "_keep_in_fp32_modules_strict", None) or ())] if dtype.itemsize == 2 else []
    kept += [*(getattr(model, "_keep_in_fp32_modules", None) or ())] if dtype == torch.float16 else []
    if any(f".{name}." in f".{parameter}." for name in kept):
        dtype = torch.float32
    if info.dtype == dtype:
        return info
    return DerivedTensor.of(info.name, (info.shape, dtype), [info], lambda: info.read().to(dtype))


def of_each_expert(tensors: Sequence[PlannedTensor], network: Network) -> list[PlannedTensor]:
    """The tensors, of which each that is one expert's knows what an importance matrix says of that expert alone."""
    given = [tensor for tensor in tensors if tensor.assignment is not None and tensor.assignment.importance is not None]
    if not given:
        return list(tensors)
    places = GgufPlaces(network)
    return [
        dataclasses.replace(tensor, assignment=of_tensor(tensor.assignment, tensor.name, places))
        if tensor.assignment is not None and tensor.assignment.importance is not None
        else tensor
        for tensor in tensors
    ]


def _refuse_missing(source: SourceCheckpoint, resolution: Resolution, tensors: Sequence[PlannedTensor]) -> None:
    found = {tensor.assignment.site.name for tensor in tensors if tensor.assignment is not None}
    for name in resolution.assignments:
        if name not in found:
            raise SourceError(
                f"{source.directory} stores no weight for {name}, which transformers makes by itself, and the recipe "
                "quantizes it. Exclude it in the recipe's targets."
            )


def _refuse_strays(tensors: Sequence[PlannedTensor]) -> None:
    """Refuse unused tensors beside a weight that is quantized, where readers look for its scales and zeros."""
    modules = {tensor.name.rpartition(".")[0] for tensor in tensors if tensor.stored is not None}
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        if not tensor.parameter and module in modules and leaf != "bias":
            raise SourceError(
                f"{tensor.name} in {tensor.source.file} is not used by the model of its config, and stands where "
                f"readers look for what belongs to the quantized weight of {module}. Remove it from the file, or "
                "exclude that layer in the recipe's targets."
            )


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
        if not by_rows or matrix.shape[-1] != site.in_features:
            obstacle = "the checkpoint stores it in another arrangement than the model"
        stored = StoredLayer(
            name=name,
            site=site.name,
            kind="experts" if site.layout is Layout.TRANSPOSED_EXPERTS else site.layout.value,
            shape=matrix.shape,
            scheme=assignment.scheme,
            fractional_zeros=assignment.stage.fractional_zeros,
            float16_ranges=assignment.stage.float16_ranges,
            multiplied=assignment.multiplied,
            scale_dtype=scale_dtype(info.dtype),
            rotated=assignment.rotated,
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
    """The ends of ties that are no more and that the checkpoint does not store, read from the other end."""
    stored = {tensor.parameter: tensor for tensor in tensors}
    sites = {site.parameter_name: site for site in network.sites}
    copies = []
    for parameter, owner in tied.items():
        site = sites.get(parameter)
        if parameter in stored or owner not in stored or (site is not None and site.name in resolution.ties):
            continue
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
