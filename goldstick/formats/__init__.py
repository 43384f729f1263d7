"""Bytes on disk: safetensors files, checkpoint directories and the storage formats of quantized weights."""

from goldstick.formats.awq import Awq
from goldstick.formats.base import StorageFormat
from goldstick.formats.compressed_tensors import CompressedTensors
from goldstick.formats.gguf import Gguf
from goldstick.formats.gptq import Gptq
from goldstick.formats.native import Native

#: Every storage format by name. ``auto`` tries the first and then the second.
FORMATS: dict[str, StorageFormat] = {
    "compressed-tensors": CompressedTensors(),
    "native": Native(),
    "gptq": Gptq(version=1),
    "gptq-v2": Gptq(version=2),
    "awq": Awq(),
    "gguf": Gguf(),
}

#: The formats whose files hold scales in float16, whatever the model is.
FLOAT16_SCALES = frozenset({"gptq", "gptq-v2", "awq", "gguf"})

#: The formats that hold columns in an order of their own.
ORDERED_COLUMNS = frozenset({"native", "gptq", "gptq-v2"})

__all__ = [
    "FLOAT16_SCALES",
    "FORMATS",
    "ORDERED_COLUMNS",
    "Awq",
    "CompressedTensors",
    "Gguf",
    "Gptq",
    "Native",
    "StorageFormat",
]
