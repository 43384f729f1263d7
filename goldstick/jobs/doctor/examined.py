"""A checkpoint under examination: opened without stopping at its first contradiction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors, read_config
from goldstick.errors import CheckpointError, GoldstickError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.hf.layers import DeclaredLayers, StoredLayers
from goldstick.hf.names import CheckpointNames, empty_model, load_config, model_class
from goldstick.jobs.doctor.finding import Finding
from goldstick.structure.network import Network


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A checkpoint under examination.

    Attributes:
        directory: Where it lies.
        config: Its config.json.
        table: Its ``quantization_config``; empty for a float checkpoint.
        tensors: Every tensor of it.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
        stored: Its quantized matrices as far as the config makes sense, or ``None`` for a float checkpoint.
        contradictions: Where the config does not make sense.
    """

    directory: Path
    config: Mapping[str, Any]
    table: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    names: CheckpointNames
    network: Network
    stored: StoredLayers | None
    contradictions: tuple[Finding, ...]

    @property
    def layers(self) -> tuple[StoredLayer, ...]:
        """Its quantized matrices."""
        return self.stored.layers if self.stored else ()

    def part_names(self, layer: StoredLayer) -> list[str]:
        """Names of the tensors that a layer should be stored in."""
        if self.stored is None:
            return []
        return [part_name(layer.name, suffix) for suffix in self.stored.format.stored_specs(layer, self.tensors)]


def open_examined(directory: Path) -> Examined:
    """Look at the config and the headers of a checkpoint.

    Raises:
        SourceError: It is no checkpoint of a transformers model, or its files cannot be read.
        FormatError: It is quantized in a way that goldstick does not read.
    """
    config = read_config(directory)
    tensors = open_tensors(directory)
    model = empty_model(load_config(directory), model_class(config, str(directory)), len(tensors))
    names, network = CheckpointNames(model), Network(model)
    table = config.get("quantization_config")
    stored, contradictions = None, []
    if table is not None:
        if not isinstance(table, Mapping):
            raise CheckpointError(f"The quantization_config of {directory} is no table. Copy the checkpoint again.")
        declared = DeclaredLayers(directory, table, names, network, tensors)
        layers = []
        for name in tensors:
            try:
                layer = declared.layer_of(name)
            except GoldstickError as error:
                contradictions.append(_contradiction(name, error))
            else:
                layers += [layer] if layer is not None else []
        lost = sorted(set(declared.listed.schemes) - {layer.site for layer in layers})
        contradictions += [_contradiction(site, "its config quantizes it and no codes are stored") for site in lost]
        stored = StoredLayers(directory=directory, format=declared.format, layers=tuple(layers), tensors=tensors)
    return Examined(
        directory=directory,
        config=config,
        table=table or {},
        tensors=tensors,
        names=names,
        network=network,
        stored=stored,
        contradictions=tuple(contradictions),
    )


def _contradiction(name: str, reason: object) -> Finding:
    return Finding(
        severity="fault",
        check="config",
        what="the config and the tensors contradict each other",
        where=(f"{name}: {reason}",),
        remedy="correct quantization_config in config.json, or export the checkpoint again with the tool it came from",
    )
