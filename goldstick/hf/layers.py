"""Every quantized matrix that a transformers checkpoint holds, found in its config and file headers, in any format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError
from goldstick.formats import FORMATS
from goldstick.formats.awq import awq_scheme
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.compressed_tensors import groups_by_module, scheme_of_group
from goldstick.formats.gguf_blocks import BY_SUFFIX
from goldstick.formats.gptq import gptq_schemes, gptq_storage, scatters
from goldstick.formats.input_scale import INPUT_ZERO, part_name
from goldstick.formats.native import multiplied_in, reordered_in, schemes_of, ties_of
from goldstick.hf.names import CheckpointNames
from goldstick.structure.network import Layout, Network, Site

#: Formats that pack a linear layer along its inputs, and name its tensors beside the weight.
_BY_COLUMN = frozenset({"gptq", "gptq-v2", "awq"})


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
        for suffix, (shape, dtype) in self.format.specs(layer, layer.scale_dtype or torch.float32).items():
            name = part_name(layer.name, suffix)
            info = self.tensors.get(name)
            if info is None:
                raise CheckpointError(f"{self.directory} lacks the tensor {name!r} that its config calls for.")
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
        native = self.format.name == "native"
        self.schemes = schemes_of(config) if native else {}
        self._ties = ties_of(config) if native else {}
        self._multiplied = multiplied_in(config) if native else frozenset()
        self._reordered = reordered_in(config) if native else frozenset()
        self._directory, self._config, self._names, self._tensors = directory, config, names, tensors
        self._owners = {site.parameter_name: site for site in network.sites}
        if unknown := sorted({*self.schemes, *self._ties} - set(network.by_name)):
            raise CheckpointError(f"{directory} quantizes {unknown[0][:200]!r}, which its model does not have.")

    def layer_of(self, name: str) -> StoredLayer | None:
        """The layer whose codes a tensor holds, or ``None`` where it holds no codes.

        Raises:
            FormatError: The config describes no such layer, or describes one that goldstick does not read.
            CheckpointError: Another tensor that it takes is missing.
        """
        info, storage = self._tensors[name], self.format.name
        weight = _weight_name(name, info, storage)
        if weight is None:
            return None
        site = self._owners.get(self._names.piece(weight).parameter)
        scheme = None
        if site is not None:
            scheme = self.schemes.get(site.name) if storage == "native" else self._scheme(weight, name)
        if site is None or scheme is None:
            raise FormatError(
                f"{self._directory}: the packed tensor {name!r} belongs to no layer that the config describes."
            )
        layer = _layer(weight, info, site, scheme, storage, self._tensors, site.name in self._multiplied)
        scattered = site.name in self._reordered or _scatters(layer, storage, self._tensors)
        return dataclasses.replace(layer, reordered=scattered)

    def _scheme(self, weight: str, codes: str) -> Scheme | None:
        module, storage = weight.removesuffix(".weight"), self.format.name
        if storage == "gguf":
            return Scheme(weight=BY_SUFFIX[codes.removeprefix(weight)].grid)
        if storage == "awq":
            zeros = self._tensors.get(f"{module}.qzeros")
            if zeros is None:
                raise CheckpointError(f"The tensor {module + '.qzeros'!r} is missing, which AWQ layers have.")
            if zeros.dtype is not torch.int32:
                raise CheckpointError(f"The tensor {module + '.qzeros'!r} is of another type than int32.")
            return awq_scheme(self._config, zeros.read())
        return self._declared(module)

    @cached_property
    def _declared(self) -> Callable[[str], Scheme | None]:
        """What the config of GPTQ or compressed-tensors says of a module."""
        if self.format.name != "compressed-tensors":
            return gptq_schemes(self._config)
        group_of = groups_by_module(self._config)

        def scheme_of(module: str) -> Scheme | None:
            group = group_of(module)
            return None if group is None else scheme_of_group(group)

        return scheme_of


def read_layers(
    directory: Path,
    config: Mapping[str, Any],
    names: CheckpointNames,
    network: Network,
    tensors: Mapping[str, TensorInfo] | None = None,
) -> StoredLayers:
    """The quantized matrices of a checkpoint; reads its headers, of AWQ the zeros and of GPTQ whose groups they are.

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
    declared = DeclaredLayers(directory, config, names, network, tensors)
    layers = tuple(layer for name in tensors if (layer := declared.layer_of(name)) is not None)
    lost = sorted(set(declared.schemes) - {layer.site for layer in layers})
    if lost:
        raise CheckpointError(f"{directory} lacks the packed tensor of {lost[0]} that its config calls for.")
    return StoredLayers(directory=directory, format=declared.format, layers=layers, tensors=tensors)


def storage_of(directory: Path, config: Mapping[str, Any]) -> StorageFormat:
    """The storage format of a ``quantization_config``.

    Raises:
        FormatError: It is none that goldstick reads.
    """
    method = config.get("quant_method")
    if method == "gptq":
        return FORMATS[gptq_storage(config)]
    known = {"goldstick": "native", "compressed-tensors": "compressed-tensors", "awq": "awq", "gguf": "gguf"}
    if not isinstance(method, str) or method not in known:
        raise FormatError(
            f"{directory} is quantized with {shown(method)}, which goldstick does not load. It loads "
            "compressed-tensors, GPTQ, AWQ, GGUF and its own native format."
        )
    return FORMATS[known[method]]


def _weight_name(name: str, info: TensorInfo, storage: str) -> str | None:
    """The float tensor that a stored tensor is the codes of, or ``None`` where it is no codes."""
    if storage == "gguf":
        suffix = _block_suffix(name)
        return name.removesuffix(suffix) if suffix else None
    if storage in _BY_COLUMN:
        return name.removesuffix(".qweight") + ".weight" if name.endswith(".qweight") else None
    if name.endswith("_packed"):
        return name.removesuffix("_packed")
    plain = storage == "compressed-tensors" and info.dtype is torch.int8 and not name.endswith(INPUT_ZERO)
    return name if plain else None


def _block_suffix(name: str) -> str | None:
    return next((suffix for suffix in BY_SUFFIX if name.endswith(f".weight{suffix}")), None)


def _layer(
    weight: str,
    codes: TensorInfo,
    site: Site,
    scheme: Scheme,
    storage: str,
    tensors: Mapping[str, TensorInfo],
    multiplied: bool,
) -> StoredLayer:
    by_column = storage in _BY_COLUMN
    if len(codes.shape) < 2 or (storage == "compressed-tensors" and len(codes.shape) > 2):
        raise FormatError(f"{weight} has codes of the shape {list(codes.shape)}, which are no matrix.")
    if by_column and (site.layout is not Layout.LINEAR or codes.shape[1:] == ()):
        raise FormatError(f"{weight} is stored as {storage}, which goldstick reads for linear layers only.")
    scale = tensors.get(weight.removesuffix(".weight") + ".scales" if by_column else weight + "_scale")
    rows = codes.shape[-1:] if by_column else codes.shape[:-1]
    if storage == "awq":
        rows = torch.Size([8 * codes.shape[-1]])
    return StoredLayer(
        name=weight,
        site=site.name,
        kind="experts" if site.layout is Layout.TRANSPOSED_EXPERTS else site.layout.value,
        shape=torch.Size([*rows, site.in_features]),
        scheme=scheme,
        fractional_zeros=False,
        multiplied=multiplied,
        scale_dtype=torch.float16 if storage == "gguf" else scale.dtype if scale is not None else None,
    )


def _scatters(layer: StoredLayer, storage: str, tensors: Mapping[str, TensorInfo]) -> bool:
    info = tensors.get(layer.name.removesuffix(".weight") + ".g_idx")
    if info is None or not storage.startswith("gptq") or info.shape != layer.shape[-1:]:  # what is wrong is said later
        return False
    return scatters(info.read(), layer.scheme.weight)


def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
