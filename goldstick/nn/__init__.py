"""Modules that run on packed weights, one for each layout a network can hold."""

from goldstick.nn.conv import QuantizedConv2d
from goldstick.nn.embedding import QuantizedEmbedding, TiedQuantizedLinear
from goldstick.nn.experts import QuantizedExperts
from goldstick.nn.fused.fused_linears import FusedLinears
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.packed import PackedWeight

__all__ = [
    "FusedLinears",
    "PackedWeight",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedExperts",
    "QuantizedLinear",
    "TiedQuantizedLinear",
]
