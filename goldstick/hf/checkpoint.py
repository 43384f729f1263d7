"""A quantized transformers checkpoint, looked at and not loaded: its layers, its model, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch

from goldstick.checkpoint.source import open_tensors, read_config
from goldstick.checkpoint.unused_tensors import unused_tensors
from goldstick.errors import SourceError
from goldstick.formats.input_scale import part_name
from goldstick.hf.idle_biases import idle_biases
from goldstick.hf.key_report import key_report, require_complete_keys
from goldstick.hf.layers import StoredLayers, read_layers
from goldstick.hf.names import CheckpointNames, empty_model, load_config, model_class
from goldstick.structure.network import Network


@dataclass(frozen=True, kw_only=True)
class QuantizedCheckpoint:
    """A quantized transformers checkpoint, looked at and not loaded.

    Attributes:
        directory: Where it lies.
        config: Its config.json.
        stored: Its quantized matrices.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
        ties: Sites that run on another's quantized weight: site → owner.
        unused: Tensors that it carries on for nothing.
    """

    directory: Path
    config: Mapping[str, Any]
    stored: StoredLayers
    names: CheckpointNames
    network: Network
    ties: Mapping[str, str]
    unused: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """What its model computes in: the dtype of its config, or of its float tensors."""
        named = self.config.get("dtype") or self.config.get("torch_dtype")
        dtype = getattr(torch, named, None) if isinstance(named, str) else None
        if isinstance(dtype, torch.dtype):
            return dtype
        parts = {part_name(layer.name, suffix) for layer in self.stored.layers for suffix in self.stored.parts(layer)}
        floats = (info.dtype for name, info in self.stored.tensors.items() if name not in parts)
        return next((found for found in floats if found.is_floating_point), torch.float32)


def open_quantized(directory: Path) -> QuantizedCheckpoint:
    """Look at a quantized checkpoint; see :func:`read_layers`.

    Raises:
        SourceError: The directory is no checkpoint, or is not quantized.
        CheckpointError: Its tensors are not those of its model, no fewer and no more.
    """
    config = read_config(directory)
    table = config.get("quantization_config")
    if table is not None and not isinstance(table, Mapping):
        raise SourceError(
            f"{directory}: config.json has a 'quantization_config' that is no table, but {shown(table)}. Remove it if "
            "the weights are float; else fetch the file again."
        )
    if table is None:
        raise SourceError(f"{directory} is not quantized: its config.json has no quantization_config.")
    tensors = open_tensors(directory)
    model = empty_model(load_config(directory), model_class(config, str(directory)), len(tensors))
    names, network = CheckpointNames(model), Network(model)
    stored = read_layers(directory, table, names, network, tensors)
    ties = ties_of(network, stored, table)
    told = {**table, "ties": ties}
    unused = tuple(dict.fromkeys((*unused_tensors(directory), *idle_biases(stored, names, network))))
    require_complete_keys(directory, key_report(tensors, stored, told, names, network, unused))
    return QuantizedCheckpoint(
        directory=directory, config=config, stored=stored, names=names, network=network, ties=ties, unused=unused
    )


def ties_of(network: Network, stored: StoredLayers, config: Mapping[str, Any]) -> Mapping[str, str]:
    """The sites of a checkpoint that run on another's quantized weight: site → owner.

    Its ``quantization_config`` lists them, or the format has a head that is not stored run on a quantized embedding.
    """
    if not stored.format.head_on_embedding:
        return stored.format.listed(config).ties
    quantized = {layer.site for layer in stored.layers}
    embeddings = [site.name for site in network.sites if site.role == "embedding" and site.name in quantized]
    heads = [site for site in network.sites if site.role == "head" and site.name not in quantized]
    missing = [head.name for head in heads if head.parameter_name not in stored.tensors]
    return dict.fromkeys(missing, embeddings[0]) if embeddings else {}
