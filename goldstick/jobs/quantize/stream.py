"""Stream: carry out a plan tensor by tensor, from the source's files into the checkpoint's, never building the "
"model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.safetensors_file import TensorInfo, file_head
from goldstick.core.error import WeightError
from goldstick.core.ranks import Ranks
from goldstick.core.rows import CHUNK_ELEMENTS
from goldstick.errors import SourceError
from goldstick.formats.input_scale import part_name
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.plan.planned_tensors import PlannedTensor
from goldstick.recipes.run import decide
from goldstick.recipes.shared_scales import Reach

#: What is written for a tensor, and how far it is from the original, where it was rounded.
_Made = tuple[Mapping[str, Tensor], WeightError | None]


class SourceReader:
    """Reads tensors in file order and hashes every file on the way, so that hashing costs no second read."""

    def __init__(self) -> None:
        self._digests: dict[Path, Any] = {}
        self._positions: dict[Path, int] = {}

    def read(self, info: TensorInfo) -> Tensor:
        """The tensor; part of its file's hash when it comes in its turn."""
        digest = None
        if type(info) is not TensorInfo:  # no run of bytes of a safetensors file
            return info.read()
        if info.file not in self._digests:
            head = file_head(info.file)
            self._digests[info.file] = hashlib.sha256(head)
            self._positions[info.file] = len(head)
        if self._positions[info.file] == info.start:
            digest = self._digests[info.file]
            self._positions[info.file] += info.nbytes
        return info.read(digest)

    def hashes(self) -> dict[str, str]:
        """File name → sha256 of the files that were read through."""
        return {
            file.name: digest.hexdigest()
            for file, digest in self._digests.items()
            if self._positions[file] == file.stat().st_size
        }


#: Weights that are divided over ranks at a time, for each of them.
_WINDOW = 1 << 29


def stream_entries(
    plan: Plan, reader: SourceReader, errors: dict[str, WeightError], device: torch.device, ranks: Ranks
) -> Iterator[Entry]:
    """The entries of a plan's checkpoint, each rounded when it is produced, or received from the rank that rounds it.

    Args:
        plan: The plan; must stream.
        reader: Reads the source.
        errors: Filled as entries are produced: site name → error, summed over its pieces.
        device: Where weights are rounded.
        ranks: Who does it together; this is the first of them.
    """
    made = _made(plan, reader, device, ranks)
    for tensor in plan.tensors:
        yield Entry(name=tensor.name, outputs=tensor.outputs, produce=partial(_next_of, made, tensor, errors))


def assist_streaming(plan: Plan, device: torch.device, ranks: Ranks) -> None:
    """What a rank that is not the first does: round its tensors, and hand them over."""
    for _ in _made(plan, SourceReader(), device, ranks):
        pass


def _made(plan: Plan, reader: SourceReader, device: torch.device, ranks: Ranks) -> Iterator[_Made]:
    """What becomes of each tensor, in their order."""
    reach = _reach(plan)
    # A copy costs less than to hand it over.
    costs = [0 if tensor.assignment is None else tensor.source.shape.numel() for tensor in plan.tensors]
    return ranks.in_order(costs, lambda number: _make(plan, plan.tensors[number], reader, device, reach), _WINDOW)


def _next_of(made: Iterator[_Made], tensor: PlannedTensor, errors: dict[str, WeightError]) -> Mapping[str, Tensor]:
    outputs, error = next(made)
    if error is not None and tensor.assignment is not None:
        site = tensor.assignment.site.name
        errors[site] = errors[site] + error if site in errors else error
    return outputs


def _not_finite(value: Tensor) -> int:
    """How many values are NaN or infinite; few are looked at at a time, since answers take room, too."""
    if not value.is_floating_point():
        return 0
    parts = torch.split(value.reshape(-1), CHUNK_ELEMENTS // 4)
    return sum(int((~torch.isfinite(part.float())).sum()) for part in parts)


def _reach(plan: Plan) -> Reach:
    """The largest magnitudes of the tensors that share a scale of scales."""
    rounded = {tensor.name: tensor for tensor in plan.tensors if tensor.assignment is not None}
    schemes = {name: tensor.assignment.scheme for name, tensor in rounded.items() if tensor.assignment is not None}
    return Reach(schemes, lambda name: rounded[name].source.read())


def _make(plan: Plan, tensor: PlannedTensor, reader: SourceReader, device: torch.device, reach: Reach) -> _Made:
    value = reader.read(tensor.source)
    if bad := _not_finite(value):
        raise SourceError(
            f"{tensor.source.name} in {tensor.source.file} holds {bad} values that are NaN or infinite. The "
            "checkpoint is "
            "damaged; fetch it again, or repair it before quantizing."
        )
    assignment = tensor.assignment
    if assignment is None:
        return {tensor.name: value}, None
    site = assignment.site
    matrix = site.layout.to_matrix(value).to(device)
    if matrix.dtype is torch.float64:
        matrix = matrix.float()
    edit, error = decide(
        assignment.stage, site, matrix, assignment.scheme, assignment.importance, reach.of(tensor.name)
    )
    if tensor.source.name != site.parameter_name:
        error = error.of_part(tensor.source.name)
    parts = plan.format.pack(edit.tensor, edit.scheme, edit.input_scale, edit.input_zero)
    return {part_name(tensor.name, suffix): part.cpu() for suffix, part in parts.items()}, error
