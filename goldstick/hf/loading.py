"""Loading a compressed checkpoint as a transformers model: its config translated, its tensors all accounted for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.checkpoint.kv_cache import read_kv
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import named_by_autogptq, open_tensors
from goldstick.core.layout import Layout
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats import FORMATS
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.formats.native import NATIVE
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.checkpoint import open_quantized, ties_of
from goldstick.hf.generation_config import read_generation_config
from goldstick.hf.idle_biases import idle_biases
from goldstick.hf.layers import StoredLayers, read_layers
from goldstick.hf.names import CheckpointNames, empty_model, load_config, model_class
from goldstick.hf.native_tensors import is_stacked_as_stored, of_experts, with_native_tensors
from goldstick.structure.network import Network


def load_transformers(directory: Path, config: Mapping[str, Any], dtype: str | torch.dtype) -> nn.Module:
    """A transformers model on packed weights from a checkpoint directory.

    Raises:
        CheckpointError: Tensors are missing, unexpected or of the wrong shape.
        FormatError: The checkpoint's method or scheme is not one goldstick reads.
    """
    cls, settings, tensors = quantized_class(directory, config)
    model, info = from_pretrained(cls, directory, config=settings, dtype=dtype, tensors=tensors)
    problems = {
        kind: sorted(map(str, info[kind]))
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if info.get(kind)
    }
    if problems:
        kind, names = next(iter(problems.items()))
        raise CheckpointError(
            f"{directory} does not hold what its config promises: {kind.replace('_', ' ')} {', '.join(names[:3])}"
            f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}. The checkpoint is damaged or incomplete."
        )
    model.config.quantization_config = copy.deepcopy(config["quantization_config"])
    kv = read_kv(directory, config["quantization_config"])
    if kv is not None:  # where transformers alone reads a native checkpoint, its quantizer does the same
        use_quantized_cache(model, kv)
    return model.eval()  # type: ignore[no-any-return]


def from_pretrained(
    cls: Any,
    directory: Path,
    *,
    config: Any,
    dtype: str | torch.dtype,
    tensors: Mapping[str, TensorInfo] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What transformers makes of a checkpoint, and what it says of its tensors.

    transformers looks for weights in safetensors files of its own names; tensors of a GGUF file, of one that AutoGPTQ
    named, or that are made of those of its files, are handed to it, each to be read when its turn comes.

    Args:
        cls: The model's class.
        directory: The checkpoint.
        config: The model's config.
        dtype: What float tensors are read as.
        tensors: The tensors where they are not those of the files.

    Raises:
        CheckpointError: It fails.
    """
    table = getattr(config, "quantization_config", None) or {}
    storage = table.get("storage")
    if tensors is None and ((storage and FORMATS[storage].in_gguf) or named_by_autogptq(directory) is not None):
        tensors = open_tensors(directory)
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    if tensors is not None:
        settings["state_dict"] = {name: LazyTensor(info) for name, info in tensors.items()}
    else:
        settings["local_files_only"] = True
    try:
        model, info = cls.from_pretrained(None if tensors is not None else directory, **settings)
    except GoldstickError:
        raise
    except Exception as error:  # whatever in a stranger's files transformers did not expect
        read_generation_config(directory, empty_model(copy.deepcopy(config), cls))
        raise CheckpointError(
            f"transformers cannot load {directory}: {type(error).__name__}: {' '.join(str(error).split())[:500]} The "
            "checkpoint is damaged, or made for another version of transformers."
        ) from error
    if tensors is not None:
        model.config.name_or_path = model.name_or_path = str(directory)
        if (found := read_generation_config(directory, model)) is not None:
            model.generation_config = found
    return model, info


class LazyTensor:
    """A tensor on disk, read when it is indexed with ``...``, as the slices of safetensors are."""

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        self.dtype, self.shape = info.dtype, info.shape

    def __getitem__(self, index: EllipsisType) -> Tensor:
        return self._info.read()

    def is_floating_point(self) -> bool:
        """Whether transformers may cast it."""
        return self.dtype.is_floating_point


def quantized_class(directory: Path, config: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, TensorInfo] | None]:
    """The transformers class of a quantized checkpoint, and its config with a table of layers goldstick understands.

    Beside them every tensor, where the model cannot take them as the files hold them.

    Raises:
        FormatError: The checkpoint's method or scheme is not one goldstick reads.
    """
    checkpoint = open_quantized(directory)
    settings = load_config(directory)
    cls = model_class(config, str(directory))
    settings.quantization_config = _in_native_words(checkpoint.stored, checkpoint.ties)
    settings.quantization_config["unused"] = _named_in_model(checkpoint.names, checkpoint.unused)
    sites = checkpoint.network.by_name
    if any(sites[owner].layout is Layout.EMBEDDING for owner in checkpoint.ties.values()):
        settings.tie_word_embeddings = False  # transformers ties floats only
    return cls, settings, with_native_tensors(checkpoint.stored, checkpoint.network)


def translated(
    directory: Path, model: Any, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> dict[str, Any]:
    """What a ``quantization_config`` says, in the native format's words.

    Args:
        directory: The checkpoint.
        model: Its transformers model, on the meta device.
        config: Its ``quantization_config``.
        tensors: Every tensor of it.

    Raises:
        CheckpointError: Tensors are missing, or of another shape than declared.
        FormatError: The method, the layout or a scheme is not one goldstick reads.
    """
    names, network = CheckpointNames(model), Network(model)
    found = read_layers(directory, config, names, network, tensors)
    for layer in found.layers:
        if left_out := found.format.implied(layer, tensors):
            raise FormatError(
                f"{part_name(layer.name, next(iter(left_out)))} was left out by the writer of {directory}, and "
                f"from_pretrained needs it. Load the checkpoint with goldstick.load({str(directory)!r})."
            )
        if layer.kind == "experts" and not is_stacked_as_stored(found.format, layer):
            raise FormatError(
                f"{layer.name} holds experts in {layer.scheme.label}, which transformers cannot gather as "
                f"{found.format.name} stores them. Load the checkpoint with goldstick.load({str(directory)!r})."
            )
    unused = _named_in_model(names, idle_biases(found, names, network))
    return _in_native_words(found, ties_of(network, found, config)) | {"unused": unused}


def _named_in_model(names: CheckpointNames, tensors: Iterable[str]) -> list[str]:
    """What tensors of a checkpoint are called once transformers has renamed them."""
    pieces = [names.piece(name) for name in tensors]
    return [name for piece in pieces for name in (piece.parameter, *piece.others)]


def _in_native_words(found: StoredLayers, ties: Mapping[str, str]) -> dict[str, Any]:
    sites: dict[str, StoredLayer] = {}
    for layer in found.layers:
        found.parts(layer)  # transformers would cast what has another dtype
        if layer.kind == "experts":
            layer = dataclasses.replace(layer, scheme=of_experts(layer.scheme))
        if sites.setdefault(layer.site, layer).scheme != layer.scheme:
            raise FormatError(
                f"{found.directory}: the experts fused in {layer.site} have several schemes; they need one."
            )
    storage = {} if found.format.read_as_native else {"storage": found.format.name}
    return NATIVE.config(list(sites.values()), [], ties) | storage
