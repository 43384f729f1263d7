"""What a checkpoint says of a model in memory: its config, its names of tensors, which matrices stayed float."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from goldstick.formats.stored_piece import StoredPiece
from goldstick.hf.float_matrices import float_matrices
from goldstick.hf.names import CheckpointNames, empty_model
from goldstick.hf.pruned import marked
from goldstick.structure.network import Network


def is_transformers(model: nn.Module) -> bool:
    """Whether it is a transformers model, which its config describes."""
    return hasattr(model, "config") and hasattr(type(model), "base_model_prefix")


def names_of(model: nn.Module) -> CheckpointNames | None:
    """How checkpoints of a transformers model name tensors; ``None`` for any other module."""
    if not is_transformers(model):
        return None
    return CheckpointNames(empty_model(copy.deepcopy(model.config), type(model)))


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """The config.json of a transformers model; ``None`` for any other module."""
    if not is_transformers(model):
        return None
    settings: Any = model.config
    config: dict[str, Any] = json.loads(settings.to_json_string(use_diff=True))
    config["architectures"] = [type(model).__name__]
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        config["dtype"] = str(first.dtype).removeprefix("torch.")
    return marked(config)


def ignored(
    network: Network, pieces: Sequence[StoredPiece], floats: Mapping[str, Any], names: CheckpointNames | None
) -> list[str]:
    """Modules of a rewritten network whose matrices stayed float; see :func:`float_matrices`.

    Args:
        network: Rewritten; its ``sites`` are those it had before.
        pieces: What is quantized.
        floats: The float tensors, as the checkpoint names them.
        names: How it names tensors; ``None`` keeps the parameters' names.
    """
    parameters = {name: names.piece(name).parameter if names else name for name in floats}
    matrices = {name: parameters[name] for name, value in floats.items() if value.ndim == 2}
    quantized = {piece.layer.site for piece in pieces}
    return list(dict.fromkeys(float_matrices(network, matrices, quantized, parameters.values())))
