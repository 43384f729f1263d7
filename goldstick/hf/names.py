"""What transformers knows of a checkpoint: the empty model of a config, and which tensor belongs to which parameter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.source import read_json
from goldstick.core.json_files import NON_FINITE
from goldstick.errors import GoldstickError, SourceError
from goldstick.formats.mlx import with_one_table
from goldstick.hf.counted_modules import most_modules
from goldstick.hf.pruned import cut_as_told, unmarked

#: Keys of a config by which it can have code fetched from the hub: implementations may be named like repositories.
_NAMES_OF_CODE = frozenset({"attn_implementation", "experts_implementation", "trust_remote_code"})
#: The key under which transformers writes a number that JSON has no name for.
_NUMBER = "__float__"
#: What a config counts, and how much of it goldstick believes. Configs make lists of this length by themselves.
_MOST = (
    (re.compile(r".*layers?|depths?"), 10_000),
    (re.compile(r"num_labels|.*experts"), 100_000),
)

#: Sizes by which a config's own model is built; those of parts of it may be 0.
_SIZES = (
    "hidden_size", "n_embd", "d_model", "vocab_size", "num_attention_heads", "n_head", "num_hidden_layers", "n_layer",
    "intermediate_size", "max_position_embeddings",
)  # fmt: skip

#: What transformers builds models in.
_COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Divisible by every number of matrices that one is stacked from.
_MOST_STACKED = 12
#: Conversions that only stack, split or join whole rows, and so may be applied to codes and scales alike.
ROW_OPERATIONS = frozenset({"MergeModulelist", "SplitModulelist", "Concatenate", "Chunk", "Split", "_IdentityOp"})


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
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise SourceError(
            f"{where}: config.json says architectures = {shown(names)}. Name the class that the weights are for in a "
            'list, such as "architectures": ["LlamaForCausalLM"].'
        )
    for name in names:
        try:
            cls = getattr(transformers, name, None)
        except (TypeError, ImportError, RuntimeError):
            cls = None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    raise SourceError(
        f"{where}: config.json names the architectures {shown(names)}, none of which transformers "
        f"{transformers.__version__} knows. Is it a transformers model, and is transformers recent enough?"
    )


def load_config(directory: Path) -> Any:
    """The transformers config of a directory, without the keys at any depth that can make loaders run code.

    Raises:
        SourceError: It counts what no model has so many of, or transformers cannot use it.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, __version__

    raw = with_one_table(read_json(directory / "config.json", "no checkpoint: it has no config.json"))
    raw = unmarked(raw, directory)
    for key, number in _integers(raw):
        for pattern, most in _MOST:
            if pattern.fullmatch(key) and number > most:
                raise SourceError(
                    f"{directory}: config.json says {key} = {number}, and goldstick reads up to {most:,}."
                )
    for key in _SIZES:
        if type(raw.get(key)) is int and raw[key] < 1:
            raise SourceError(f"{directory}: config.json says {key} = {raw[key]}, and no model has fewer than 1.")
    for key in ("dtype", "torch_dtype"):
        name = raw.get(key)
        if name is not None and not (isinstance(name, str) and getattr(torch, name, None) in _COMPUTED):
            raise SourceError(
                f"{directory}: config.json says {key} = {shown(name)}, in which no model computes. Write the dtype "
                "that it computes in, such as 'bfloat16' or 'float32', whatever its files have."
            )
    public = _public(raw)
    model_type = public.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise SourceError(
            f"{directory}: config.json names the model type {shown(model_type)}, which transformers {__version__} "
            "does not know. Is it a transformers model, and is transformers recent enough?"
        )
    try:
        config: PretrainedConfig = AutoConfig.for_model(model_type, **public)
    except Exception as error:  # a stranger's values meet code that expects none of them
        raise SourceError(f"{directory}: transformers cannot use config.json: {_first_line(error)}") from error
    config._name_or_path = str(directory)
    return config


def _public(value: Any) -> Any:
    """A config less its private keys, and those that name code to be fetched or run; with infinite numbers as such."""
    if isinstance(value, list):
        return [_public(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_NUMBER} and value[_NUMBER] in NON_FINITE:
        return NON_FINITE[value[_NUMBER]]
    kept = {key: item for key, item in value.items() if not key.startswith("_") and key not in _NAMES_OF_CODE}
    return {key: _public(item) for key, item in kept.items()}


def _integers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _integers(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _integers(item, key)
    elif type(value) is int:
        yield key, value


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'…' if len(text) > 300 else ''}"


def empty_model(config: Any, cls: Any, tensors: int | None = None) -> Any:
    """The model of a config on the meta device: every module and shape, less what was cut, no weights.

    Args:
        config: The config.
        cls: The model's class.
        tensors: How many tensors its files hold, which bounds how many modules it can have.

    Raises:
        SourceError: The config makes no model, or one of many times more modules than there are tensors.
        StructureError: It tells of cuts that the model does not allow.
    """
    try:
        with torch.device("meta"), most_modules(tensors):
            model = cls(config)
    except GoldstickError:
        raise
    except Exception as error:  # a stranger's sizes meet code that expects none of them
        where = getattr(config, "_name_or_path", "") or "the model"
        raise SourceError(f"{where}: config.json describes no {cls.__name__}: {_first_line(error)}") from error
    cut_as_told(model)
    return model.eval()


def quiet_libraries() -> None:
    """Keep transformers' and the hub's own progress bars, remarks and telemetry out of a command's output."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    library: Any = logging
    library.set_verbosity_error()
    library.disable_progress_bar()


def import_models() -> None:
    """Import now what transformers imports when the first model is made."""
    from transformers import AutoConfig, PreTrainedModel  # noqa: F401  lazy until they are asked for
    from transformers.conversion_mapping import get_model_conversion_mapping  # noqa: F401


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


def _found(name: str, patterns: Iterable[str] | None) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


class CheckpointNames:
    """Translates between the names of a checkpoint and of a model's parameters, as transformers loads them.

    Args:
        model: A transformers model, possibly on the meta device.
    """

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange, WeightConverter, WeightRenaming

        self.model = model
        self._state = dict.fromkeys(model.state_dict(), True)
        mapping = getattr(model, "_weight_conversions", None) or get_model_conversion_mapping(model)
        self._own_conversions: list[Any] = []
        if getattr(model, "_weight_conversions", None) is None:  # it was made of its config: no prefix to put back
            own = get_model_conversion_mapping(model, add_legacy=False)
            self._own_conversions = [[entry for entry in own if not isinstance(entry, PrefixChange)]]
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
        by_rows = self._operations[pattern] <= ROW_OPERATIONS and not others
        return Piece(name=name, parameter=parameter, others=others, by_rows=by_rows)

    def ignores(self, name: str) -> bool:
        """Whether transformers says nothing of a tensor that the model has no use for."""
        from transformers.utils.loading_report import LoadStateDictInfo

        found = LoadStateDictInfo(set(), {name}, set(), [], {}, set())
        self.model._adjust_missing_and_unexpected_keys(found)
        return not found.unexpected_keys

    def makes_itself(self, parameter: str) -> bool:
        """Whether the model's class says that a checkpoint may lack this parameter."""
        return _found(parameter, self.model._keys_to_ignore_on_load_missing)

    def to_checkpoint(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters (or codes, scales, zeros under a parameter's name) under the names a checkpoint uses."""
        from transformers.core_model_loading import revert_weight_conversion

        if not self._own_conversions:
            reverted: dict[str, Tensor] = revert_weight_conversion(self.model, dict(tensors))
            return reverted
        self.model._weight_conversions = self._own_conversions[0]  # or it would look for them every time
        try:
            return revert_weight_conversion(self.model, dict(tensors)) if self._own_conversions[0] else dict(tensors)
        finally:
            del self.model._weight_conversions

    def stacked(self, parameter: str, experts: int) -> int:
        """How many matrices of a checkpoint each expert of a fused parameter [experts, out, in] is stacked from."""
        if not self.rows_survive(parameter):
            return 1
        rows = torch.empty(experts, _MOST_STACKED, 1, device="meta")
        return max(1, len(self.to_checkpoint({parameter: rows})) // experts)

    def rows_survive(self, parameter: str) -> bool:
        """Whether reverting a parameter only splits it by rows, so that codes and scales can be reverted alike."""
        from transformers.core_model_loading import apply_converters

        reverse: list[Any] = [converter.reverse_transform() for converter in self._converters]
        _, pattern = apply_converters(parameter, reverse)
        if pattern is None:
            return True
        used = next(converter for converter in reverse if pattern in converter.source_patterns)
        names = {type(operation).__name__ for operation in used.operations}
        return names <= ROW_OPERATIONS and len(used.source_patterns) == 1
