"""Loading rehearsed: what transformers will say of a float checkpoint's tensors, asked before any of them is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import SourceError
from goldstick.hf.names import CheckpointNames
from goldstick.structure.network import Network

#: Tells transformers to read a tensor when its turn comes.
_ONE_AT_A_TIME = "HF_DEACTIVATE_ASYNC_LOAD"


def put_into(model: Any, tensors: Mapping[str, Any], settings: Any) -> tuple[Any, Any]:
    """Let transformers convert tensors and put them into a model, one after the other.

    Args:
        model: The model, on the meta device where nothing was put yet.
        tensors: Tensors by their names in the checkpoint, each read when it is indexed with ``...``.
        settings: How to load, as transformers says it.

    Returns:
        What it says of the tensors, and which it left on disk.
    """
    from transformers.core_model_loading import convert_and_load_state_dict_in_model

    before = os.environ.get(_ONE_AT_A_TIME)
    os.environ[_ONE_AT_A_TIME] = "1"  # threads that read ahead would hold the tensors twice
    try:
        found, offloaded = convert_and_load_state_dict_in_model(model, dict(tensors), settings)
        return found, offloaded
    finally:
        if before is None:
            del os.environ[_ONE_AT_A_TIME]
        else:
            os.environ[_ONE_AT_A_TIME] = before


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What becomes of a checkpoint's tensors in its model.

    Attributes:
        missing: Parameters and buffers of the model that nothing gives and the model does not make itself.
        misshapen: Parameter → what it should be, or why nothing can be made of its tensors, in words.
    """

    missing: tuple[str, ...]
    misshapen: Mapping[str, str]


def rehearse(model: Any, tensors: Mapping[str, TensorInfo]) -> Rehearsal:
    """Load tensors of the shapes of a checkpoint, without values, by the code of transformers that loads the real ones.

    Args:
        model: The model on the meta device; its parameters become others, so it is of no use for anything else.
        tensors: Every tensor of the checkpoint.

    Raises:
        SourceError: transformers cannot do it.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.modeling_utils import LoadStateDictConfig

    groups: dict[str, set[str]] = {}
    for name, owner in Network(model).tied().items():
        groups.setdefault(owner, {owner}).add(name)
    tied = {name: group for group in groups.values() for name in group}
    mapping: Any = get_model_conversion_mapping(model)
    settings = LoadStateDictConfig(weight_mapping=mapping, device_map={"": "meta"})
    try:
        found, _ = put_into(model, {name: _Shape(info) for name, info in tensors.items()}, settings)
    except Exception as error:  # a stranger's shapes meet code that expects none of them
        raise SourceError(f"transformers cannot load these tensors: {type(error).__name__}: {error}") from error
    wrong = {name: f" and {tuple(wanted)} in the model of its config" for name, _, wanted in found.mismatched_keys}
    wrong |= {name: f": {' '.join(str(error).split())[:200]}" for name, error in found.conversion_errors.items()}
    found.missing_keys -= set(wrong)
    model._adjust_missing_and_unexpected_keys(found)
    missing = [name for name in model.state_dict() if name in found.missing_keys]
    return Rehearsal(
        missing=tuple(name for name in missing if tied.get(name, {name}) <= found.missing_keys),
        misshapen=dict(sorted(wrong.items())),
    )


def require_loadable(directory: Path, model: Any, names: CheckpointNames, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a float checkpoint whose tensors do not make up its model.

    Args:
        directory: The checkpoint.
        model: Its model on the meta device, of no use for anything else afterwards.
        names: How the model's checkpoints name tensors.
        tensors: Every tensor of the checkpoint.

    Raises:
        SourceError: A parameter has no tensor, or one of another shape.
    """
    found = rehearse(model, tensors)
    remedy = "config.json and weights do not belong together. Fetch the checkpoint again."
    if found.misshapen:
        parameter, words = next(iter(found.misshapen.items()))
        raise SourceError(f"{directory}: {_misfit(parameter, words, names, tensors)}{_more(found.misshapen)}: {remedy}")
    if found.missing:
        raise SourceError(
            f"{directory} lacks the parameter {found.missing[0]!r} that its config calls for{_more(found.missing)}: "
            f"{remedy}"
        )


def _misfit(parameter: str, words: str, names: CheckpointNames, tensors: Mapping[str, TensorInfo]) -> str:
    parts = [name for name in tensors if parameter in ((piece := names.piece(name)).parameter, *piece.others)]
    shapes = Counter(tensors[name].shape for name in parts)
    name = min(parts, key=lambda part: shapes[tensors[part].shape])  # of the experts of a layer, the odd one
    info = tensors[name]
    if not info.dtype.is_floating_point:
        return f"{name} is stored as {info.dtype}, which is no float weight; this checkpoint is quantized already"
    others = f", which with {len(parts) - 1} more makes {parameter}" if len(parts) > 1 else ""
    return f"{name} has the shape {tuple(info.shape)} in {info.file.name}{others}{words}"


class _Shape:
    """A tensor without values, as transformers takes the slices of safetensors."""

    def __init__(self, info: TensorInfo) -> None:
        self.dtype, self.shape = info.dtype, info.shape

    def __getitem__(self, index: EllipsisType) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def is_floating_point(self) -> bool:
        """Whether transformers may cast it."""
        return self.dtype.is_floating_point


def _more(found: Any) -> str:
    return f", and {len(found) - 1} more" if len(found) > 1 else ""
