"""Modules that run on packed weights, one for each layout a network can hold."""

from goldstick.nn.conv import QuantizedConv2d
from goldstick.nn.embedding import QuantizedEmbedding, TiedQuantizedLinear
from goldstick.nn.experts import QuantizedExperts
from goldstick.nn.fused.shared_input import SharedInput
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.packed import PackedWeight

__all__ = [
    "PackedWeight",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedExperts",
    "QuantizedLinear",
    "SharedInput",
    "TiedQuantizedLinear",
]
