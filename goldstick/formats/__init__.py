"""Bytes on disk: safetensors files, checkpoint directories and the storage formats of quantized weights."""

from goldstick.formats.base import StorageFormat
from goldstick.formats.compressed_tensors import CompressedTensors
from goldstick.formats.native import Native

#: Every storage format by name, in the order in which ``auto`` tries them.
FORMATS: dict[str, StorageFormat] = {"compressed-tensors": CompressedTensors(), "native": Native()}

__all__ = ["FORMATS", "CompressedTensors", "Native", "StorageFormat"]
