"""Every quantized matrix that a transformers checkpoint holds, found in its config and file headers, in any format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors
from goldstick.core.layout import Layout
from goldstick.core.lost_weights import check_no_weight_is_lost
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats import FORMATS
from goldstick.formats.base import RotationOf, SchemeOf, StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.hf.names import CheckpointNames
from goldstick.hf.other_class import is_of_another_class
from goldstick.structure.network import Network


@dataclass(frozen=True, kw_only=True)
class StoredLayers:
    """The quantized matrices of a checkpoint.

    Attributes:
        directory: Where it lies.
        format: How they are stored.
        layers: Each of them, in file order.
        tensors: Every tensor of the checkpoint.
    """

    directory: Path
    format: StorageFormat
    layers: tuple[StoredLayer, ...]
    tensors: Mapping[str, TensorInfo]

    def parts(self, layer: StoredLayer) -> dict[str, TensorInfo]:
        """The tensors of a layer by suffix.

        Raises:
            CheckpointError: One is missing, or has another shape or dtype than the config declares.
        """
        found = {}
        for suffix, (shape, dtype) in self.format.stored_specs(layer, self.tensors).items():
            name = part_name(layer.name, suffix)
            info = self.tensors.get(name)
            if info is None:
                raise CheckpointError(
                    f"{self.directory} lacks the tensor {name!r} that its config calls for. Fetch the checkpoint "
                    "again, or write it again with the tool it came from."
                )
            if (info.shape, info.dtype) != (shape, dtype):
                raise CheckpointError(
                    f"{name} in {self.directory} is {_words(info.shape, info.dtype)}, and its config calls for "
                    f"{_words(shape, dtype)}. The checkpoint is damaged, or laid out in another way than it says."
                )
            found[suffix] = info
        return found

    def read(self, layer: StoredLayer) -> dict[str, Tensor]:
        """The same tensors, read."""
        return {suffix: info.read() for suffix, info in self.parts(layer).items()}

    def unpack(self, layer: StoredLayer, parts: Mapping[str, Tensor] | None = None) -> QuantizedTensor:
        """The weight of a layer, from its tensors where they were read already.

        Raises:
            FormatError: They hold none, or one that has lost weights; the message names the layer.
        """
        found = self.read(layer) if parts is None else parts
        try:
            tensor = self.format.unpack(found, layer.scheme, layer.shape[-1])
            check_no_weight_is_lost(tensor)
        except GoldstickError as error:
            raise FormatError(f"{layer.name} of {self.directory} cannot be read: {error}") from error
        return tensor


class DeclaredLayers:
    """What a ``quantization_config`` says of the tensors beside it.

    Args:
        directory: The checkpoint.
        config: Its ``quantization_config``.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
        tensors: Every tensor of the checkpoint.

    Raises:
        FormatError: The method, the layout or a scheme is not one that goldstick reads.
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        names: CheckpointNames,
        network: Network,
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        self.format = storage_of(directory, config)
        self.listed = self.format.listed(config)
        self._directory, self._config, self._names, self._tensors = directory, config, names, tensors
        self._owners = {site.parameter_name: site for site in network.sites}
        self._of_another = is_of_another_class(names.model)
        if unknown := sorted({*self.listed.schemes, *self.listed.ties} - set(network.by_name)):
            raise CheckpointError(f"{directory} quantizes {unknown[0][:200]!r}, which its model does not have.")

    def layer_of(self, name: str) -> StoredLayer | None:
        """The layer whose codes a tensor holds, or ``None`` where it holds no codes.

        Raises:
            FormatError: The config describes no such layer, or describes one that goldstick does not read.
            CheckpointError: Another tensor that it takes is missing.
        """
        codes = self._tensors[name]
        weight = self.format.weight_name(name, codes.dtype)
        if weight is None:
            return None
        site = self._owners.get(self._names.piece(weight).parameter)
        if site is None and self._is_left_out(weight):
            return None  # of a part that the model leaves out, such as the prediction of further tokens
        scheme = self._scheme_of(name, site.name) if site is not None else None
        if site is None or scheme is None:
            raise FormatError(
                f"{self._directory}: the packed tensor {name!r} belongs to no layer that the config describes."
            )
        if len(codes.shape) < 2 or (len(codes.shape) > 2 and not self.format.holds_stacks):
            raise FormatError(f"{weight} has codes of the shape {list(codes.shape)}, which are no matrix.")
        if self.format.linear_only and site.layout not in (Layout.LINEAR, Layout.EXPERTS):
            raise FormatError(
                f"{weight} is stored as {self.format.name}, which goldstick reads for linear layers and experts only."
            )
        shape = self.format.matrix_shape(name, self._tensors, site.in_features)
        if shape[-1] != site.in_features:
            raise FormatError(f"{weight} is a matrix {list(shape)}, and its layer has {site.in_features} inputs.")
        layer = StoredLayer(
            name=weight,
            site=site.name,
            kind="experts" if site.layout is Layout.TRANSPOSED_EXPERTS else site.layout.value,
            shape=shape,
            scheme=scheme,
            fractional_zeros=False,
            multiplied=site.name in self.listed.multiplied,
            scale_dtype=self.format.scale_dtype(weight, scheme.weight, self._tensors),
        )
        layer = dataclasses.replace(layer, rotated=self._rotation_of(weight, site.name, site.in_features))
        act_order = site.name in self.listed.act_order or self.format.act_order(layer, self._tensors)
        return dataclasses.replace(layer, act_order=act_order)

    def _is_left_out(self, weight: str) -> bool:
        """Whether a weight is of a part that the model lacks by its class, or since the files are of another class."""
        if self._names.ignores(weight):
            return True
        return self._of_another and self._names.piece(weight).parameter not in self._parameters

    def refuse_turned_floats(self, layers: Sequence[StoredLayer]) -> None:
        """Refuse a config that has the input of a layer turned at run time that is not quantized, or of none.

        Raises:
            FormatError: It has; the message names the layer, or the group of the config that names no layer.
        """
        quantized = {layer.name for layer in layers}
        for name in self._tensors:
            site = self._owners.get(self._names.piece(name).parameter)
            if site is None or name in quantized or not site.layout.multiplied:
                continue
            if self._rotation_of(name, site.name, site.in_features):
                raise FormatError(
                    f"{self._directory} has the input of {site.name} turned at run time, which is a float layer: "
                    "goldstick turns the inputs of quantized layers only."
                )
        names = [name.removesuffix(".weight") for name in (*quantized, *self._tensors)]
        if idle := self.format.idle_rotations(self._config, names):
            raise FormatError(
                f"{self._directory} has inputs turned at run time by the group {idle[0][:100]!r} of its config, which "
                "names no layer of the model, so that layers would be given inputs that are not turned. Correct its "
                "targets, or remove the group."
            )

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(self._names.model.state_dict())

    @cached_property
    def _scheme_of(self) -> SchemeOf:
        return self.format.schemes(self._config, self._tensors)

    @cached_property
    def _rotation_of(self) -> RotationOf:
        return self.format.rotations(self._config)


def read_layers(
    directory: Path,
    config: Mapping[str, Any],
    names: CheckpointNames,
    network: Network,
    tensors: Mapping[str, TensorInfo] | None = None,
) -> StoredLayers:
    """The quantized matrices of a checkpoint; reads its headers, and what a format has to read to know a scheme.

    Args:
        directory: The checkpoint.
        config: Its ``quantization_config``.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
        tensors: Every tensor of the checkpoint, where its headers were read already.

    Raises:
        FormatError: The method, the layout or a scheme is not one that goldstick reads.
        CheckpointError: Tensors do not belong together.
    """
    tensors = open_tensors(directory) if tensors is None else tensors
    try:
        declared = DeclaredLayers(directory, config, names, network, tensors)
        layers = tuple(layer for name in tensors if (layer := declared.layer_of(name)) is not None)
    except FormatError as error:
        raise error if str(directory) in str(error) else FormatError(f"{directory}: {error}") from error
    declared.refuse_turned_floats(layers)
    lost = sorted(set(declared.listed.schemes) - {layer.site for layer in layers})
    if lost:
        raise CheckpointError(f"{directory} lacks the packed tensor of {lost[0]} that its config calls for.")
    return StoredLayers(directory=directory, format=declared.format, layers=layers, tensors=tensors)


def storage_of(directory: Path, config: Mapping[str, Any]) -> StorageFormat:
    """The storage format of a ``quantization_config``.

    Raises:
        FormatError: It is none that goldstick reads.
    """
    found = next((storage for storage in FORMATS.values() if storage.claims(config)), None)
    if found is None and config.get("quant_method") is None:
        raise FormatError(
            f"{directory}: config.json has a 'quantization_config' without a 'quant_method', so nothing says how "
            "it is quantized. Remove the table if the weights are float; else fetch the file again."
        )
    if found is None:
        raise FormatError(
            f"{directory} is quantized with {shown(config.get('quant_method'))}, which goldstick does not load. It "
            f"loads {', '.join(FORMATS)}."
        )
    return found


def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
