"""The source of a run: a float checkpoint, or a quantized one as the float model that its codes stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.derived_tensor import DerivedTensor
from goldstick.checkpoint.file_state import states_in
from goldstick.checkpoint.kv_cache import KV_SCALES
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.sidecars import sidecars_of
from goldstick.checkpoint.source import SourceCheckpoint, open_tensors, read_config, require_directory
from goldstick.core.input_rotation import hadamard_transform
from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.hf.checkpoint import QuantizedCheckpoint, open_quantized
from goldstick.hf.layers import StoredLayers, storage_of
from goldstick.hf.names import load_config


def open_source(directory: Path) -> SourceCheckpoint:
    """Look at a model directory: config, file headers, nothing else.

    A weight that is stored as codes is a tensor of the model's dtype here, dequantized when it is read. What codes have
    beside them (scales, ranges of inputs, of a KV cache) is no tensor of the model, and not listed.

    Raises:
        SourceError: It is missing, is not a model, or must not be trusted.
        FormatError: It is quantized in a way that goldstick does not read.
        CheckpointError: It is quantized, and its tensors are not those that its config promises.
    """
    require_directory(directory)
    carried = sidecars_of(directory)
    states = states_in(directory, carried.values())
    config = read_config(directory, "not a model directory")
    stored = open_tensors(directory)
    tensors, quantized_as = stored, ""
    if config.pop("quantization_config", None) is not None:
        checkpoint = open_quantized(directory)
        tensors, quantized_as = _dequantized(checkpoint), _described(checkpoint.stored)
    return SourceCheckpoint(
        directory=directory,
        config=config,
        tensors=tensors,
        files=tuple(dict.fromkeys(info.file for info in stored.values())),
        sidecars=carried,
        states=states,
        quantized_as=quantized_as,
    )


def float_config(directory: Path) -> Any:
    """The config of a source's float model, as transformers has it; see :func:`load_config`."""
    settings = load_config(directory)
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config
    return settings


def runs_in_float(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether the model of a checkpoint is one in float: it is not quantized, or its format has it so.

    Raises:
        FormatError: It is quantized in a way that goldstick does not read.
    """
    table = config.get("quantization_config")
    if table is None:
        return True
    storage = storage_of(directory, table) if isinstance(table, Mapping) else None
    if storage is None or storage.scale_suffix is None:
        return False
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
    scales = {info.dtype for name, info in open_tensors(directory).items() if name.endswith(storage.scale_suffix)}
    return storage.runs_in_float(table, scales, dtype)


def _dequantized(checkpoint: QuantizedCheckpoint) -> dict[str, TensorInfo]:
    stored = checkpoint.stored
    known = [*stored.layers, *_left_out(checkpoint)]
    layers = {part_name(layer.name, suffix): layer for layer in known for suffix in stored.parts(layer)}
    kv = bool(checkpoint.config["quantization_config"].get("kv_cache_scheme"))
    tensors: dict[str, TensorInfo] = {}
    for name, info in stored.tensors.items():
        layer = layers.get(name)
        if layer is not None:
            if layer.name not in tensors:
                tensors[layer.name] = _weight(checkpoint, layer)
        elif not (kv and name.endswith(KV_SCALES)):
            tensors[name] = info
    return tensors


def _left_out(checkpoint: QuantizedCheckpoint) -> list[StoredLayer]:
    """Quantized matrices of parts that the model leaves out: no site of it, but tensors to be carried on."""
    stored, form = checkpoint.stored, checkpoint.stored.format
    scheme_of = form.schemes(checkpoint.config["quantization_config"], stored.tensors)
    names, layers = {layer.name for layer in stored.layers}, []
    for name, codes in stored.tensors.items():
        weight = form.weight_name(name, codes.dtype)
        scheme = scheme_of(name, "") if weight is not None and weight not in names else None
        if weight is not None and scheme is not None:
            columns = 8 * codes.dtype.itemsize * codes.shape[-1] // scheme.weight.bits
            layers.append(
                StoredLayer(
                    name=weight,
                    site="",
                    kind=Layout.LINEAR,
                    shape=form.matrix_shape(name, stored.tensors, columns),
                    scheme=scheme,
                    fractional_zeros=False,
                    scale_dtype=form.scale_dtype(weight, scheme.weight, stored.tensors),
                )
            )
    return layers


def _weight(checkpoint: QuantizedCheckpoint, layer: StoredLayer) -> DerivedTensor:
    """The weight of a layer as a float checkpoint stores it."""
    site = checkpoint.network.by_name.get(layer.site)
    layout = site.layout if site is not None else Layout.LINEAR
    alone = site is not None and layer.shape.numel() == site.shape.numel()  # and no part of what the model stacks
    matrix = torch.empty(layer.shape, device="meta")
    shape = site.shape if site is not None and alone else layout.from_matrix(matrix, layer.shape).shape
    dtype = checkpoint.dtype

    def dequantized() -> Tensor:
        numbers = _numbers(checkpoint.stored.unpack(layer), dtype, layer.rotated)
        return layout.from_matrix(numbers, shape).contiguous()

    return DerivedTensor.of(layer.name, (shape, dtype), checkpoint.stored.parts(layer).values(), dequantized)


def _numbers(tensor: QuantizedTensor, dtype: torch.dtype, rotated: int) -> Tensor:
    """What codes stand for, rounded to a dtype once; computed some rows at a time.

    Of a layer that turns its input, turned back: a float model turns nothing, and H / √n is its own inverse.
    """
    rows = tensor.flattened()
    numbers = torch.empty(rows.codes.shape, dtype=dtype)
    for chunk in row_chunks(numbers, copies=4):
        part = rows.rows(chunk)
        exact = part.dequantize(torch.promote_types(dtype, part.scale.dtype))
        numbers[chunk] = hadamard_transform(exact.float(), rotated) if rotated else exact
    return numbers.reshape(tensor.codes.shape)


def _described(stored: StoredLayers) -> str:
    """The format of a checkpoint and its schemes, the most frequent first; empty where nothing is stored as codes."""
    schemes = Counter(layer.scheme.label for layer in stored.layers)
    schemes.update(info.stored_as for info in stored.tensors.values() if info.stored_as)
    return f"{stored.format.name} ({', '.join(label for label, _ in schemes.most_common())})" if schemes else ""
