"""Modules that run on packed weights, one for each layout a network can hold."""

from goldstick.nn.convolution import QuantizedConvolution
from goldstick.nn.embedding import QuantizedEmbedding, TiedQuantizedLinear
from goldstick.nn.experts import QuantizedExperts
from goldstick.nn.fused.fused_linears import FusedLinears
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.packed import PackedWeight
from goldstick.nn.parameter import PackedParameter

__all__ = [
    "FusedLinears",
    "PackedParameter",
    "PackedWeight",
    "QuantizedConvolution",
    "QuantizedEmbedding",
    "QuantizedExperts",
    "QuantizedLinear",
    "TiedQuantizedLinear",
]
