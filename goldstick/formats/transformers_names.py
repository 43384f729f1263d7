"""What transformers knows of a checkpoint: the empty model of a config, and which tensor belongs to which parameter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.errors import SourceError

#: Conversions that only stack, split or join whole rows, and so may be applied to codes and scales alike.
_ROW_OPERATIONS = frozenset({"MergeModulelist", "SplitModulelist", "Concatenate", "Chunk", "Split", "_IdentityOp"})


def model_class(config: Mapping[str, Any], where: str) -> Any:
    """The transformers class that a config's ``architectures`` names.

    Raises:
        SourceError: There is none, or it would need code shipped with the model.
    """
    import transformers

    if config.get("auto_map"):
        raise SourceError(
            f"{where} needs code shipped with the model (auto_map in config.json), which goldstick does not run. "
            "Use a model that transformers supports itself, or goldstick.apply on the loaded module."
        )
    names = config.get("architectures") or []
    for name in names:
        cls = getattr(transformers, name, None)
        if isinstance(cls, type):
            return cls
    raise SourceError(
        f"{where}: config.json names the architectures {names}, none of which transformers {transformers.__version__} "
        "knows. Is it a transformers model, and is transformers recent enough?"
    )


def load_config(directory: Path) -> Any:
    """The transformers config of a directory, without private keys (which can make loaders run code)."""
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, __version__

    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    public = {key: value for key, value in raw.items() if not key.startswith("_")}
    model_type = public.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        raise SourceError(
            f"{directory}: config.json names the model type {model_type!r}, which transformers {__version__} does not "
            "know. Is it a transformers model, and is transformers recent enough?"
        )
    try:
        config: PretrainedConfig = AutoConfig.for_model(model_type, **public)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{directory}: transformers cannot use config.json: {error}") from error
    config._name_or_path = str(directory)
    return config


def empty_model(config: Any, cls: Any) -> Any:
    """The model of a config on the meta device: every module and shape, no weights."""
    with torch.device("meta"):
        model = cls(config)
    return model.eval()


def quiet_libraries() -> None:
    """Keep transformers' and the hub's own progress bars, remarks and telemetry out of a command's output."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    library: Any = logging
    library.set_verbosity_error()
    library.disable_progress_bar()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """How one checkpoint tensor belongs to the model.

    Attributes:
        name: Name of the tensor in the checkpoint.
        parameter: Name of the parameter or buffer it becomes (a part of).
        others: Further parameters that are made from it, where the model splits it.
        by_rows: Whether it arrives there by stacking whole rows, unchanged otherwise.
    """

    name: str
    parameter: str
    others: tuple[str, ...]
    by_rows: bool


class CheckpointNames:
    """Translates between the names of a checkpoint and of a model's parameters, as transformers loads them.

    Args:
        model: A transformers model, possibly on the meta device.
    """

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        self.model = model
        self._state = dict.fromkeys(model.state_dict(), True)
        mapping = getattr(model, "_weight_conversions", None) or get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._operations = {
            pattern: frozenset(type(operation).__name__ for operation in converter.operations)
            for converter in self._converters
            for pattern in converter.source_patterns
        }
        self._targets = {
            pattern: list(converter.target_patterns)
            for converter in self._converters
            for pattern in converter.source_patterns
        }

    def piece(self, name: str) -> Piece:
        """Where a checkpoint tensor goes."""
        from transformers.core_model_loading import rename_source_key

        prefix = self.model.base_model_prefix
        parameter, pattern = rename_source_key(name, self._renamings, self._converters, prefix, self._state)
        if parameter not in self._state and name in self._state:
            parameter, pattern = name, None
        if pattern is None:
            return Piece(name=name, parameter=parameter, others=(), by_rows=True)
        first, *rest = self._targets[pattern]
        others = tuple(parameter.replace(first, target) for target in rest)
        by_rows = self._operations[pattern] <= _ROW_OPERATIONS and not others
        return Piece(name=name, parameter=parameter, others=others, by_rows=by_rows)

    def to_checkpoint(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters (or codes, scales, zeros under a parameter's name) under the names a checkpoint uses."""
        from transformers.core_model_loading import revert_weight_conversion

        reverted: dict[str, Tensor] = revert_weight_conversion(self.model, dict(tensors))
        return reverted

    def rows_survive(self, parameter: str) -> bool:
        """Whether reverting a parameter only splits it by rows, so that codes and scales can be reverted alike."""
        from transformers.core_model_loading import apply_converters

        reverse: list[Any] = [converter.reverse_transform() for converter in self._converters]
        _, pattern = apply_converters(parameter, reverse)
        if pattern is None:
            return True
        used = next(converter for converter in reverse if pattern in converter.source_patterns)
        names = {type(operation).__name__ for operation in used.operations}
        return names <= _ROW_OPERATIONS and len(used.source_patterns) == 1
