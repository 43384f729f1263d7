"""Bytes on disk: safetensors files, checkpoint directories and the storage formats of quantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldstick.core.registry import Registry

if TYPE_CHECKING:
    from goldstick.formats.base import StorageFormat
    from goldstick.formats.graph import GraphFormat

#: Every storage format by name. Each is imported when it is asked for, so that their names cost nothing.
FORMATS: Registry[StorageFormat] = Registry(
    "goldstick.formats",
    "an instance of StorageFormat",
    lambda found: not isinstance(found, type) and callable(getattr(found, "unpack", None)),
    {
        "compressed-tensors": "goldstick.formats.compressed_tensors:COMPRESSED_TENSORS",
        "native": "goldstick.formats.native:NATIVE",
        "gptq": "goldstick.formats.gptq:GPTQ",
        "gptq-v2": "goldstick.formats.gptq:GPTQ_V2",
        "awq": "goldstick.formats.awq:AWQ",
        "auto-round": "goldstick.formats.auto_round:AUTO_ROUND",
        "auto-round-awq": "goldstick.formats.auto_round:AUTO_ROUND_AWQ",
        "fp8": "goldstick.formats.fp8:FP8",
        "mxfp4": "goldstick.formats.mxfp4:MXFP4",
        "modelopt": "goldstick.formats.modelopt:MODELOPT",
        "bitsandbytes": "goldstick.formats.bitsandbytes:BITSANDBYTES",
        "mlx": "goldstick.formats.mlx:MLX",
        "gguf": "goldstick.formats.gguf:GGUF",
    },
)

#: Formats of whole networks, which export writes and nothing reads back.
GRAPHS: Registry[GraphFormat] = Registry(
    "goldstick.graphs",
    "an instance of GraphFormat",
    lambda found: not isinstance(found, type) and callable(getattr(found, "session", None)),
    {"onnx": "goldstick.formats.onnx:ONNX"},
)

#: What ``auto`` means: the first, or where it cannot hold a result the second, which holds everything.
PREFERRED, FALLBACK = "compressed-tensors", "native"
