"""Random quantized layers, and the slow loop in float64 that says what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.kernels import Activation, WeightSpec
from goldstick.kernels.reference import ReferenceBackend, quantized_input

reference = ReferenceBackend()


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The operands of a quantized linear layer, and the codes they were packed from."""

    spec: WeightSpec
    codes: Tensor
    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    bias: Tensor
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None


def random_layer(
    out_features: int,
    in_features: int,
    *,
    bits: int = 4,
    group_size: int | None = None,
    asymmetric: bool = False,
    dtype: torch.dtype = torch.float32,
    activation: Activation = None,
    seed: int = 0,
) -> Layer:
    random = torch.Generator().manual_seed(seed)
    spec = WeightSpec(
        bits=bits,
        group_size=group_size or in_features,
        in_features=in_features,
        out_features=out_features,
        has_zero=asymmetric,
        dtype=dtype,
        activation=activation,
    )
    codes = torch.randint(0, 2**bits, (out_features, in_features), dtype=torch.uint8, generator=random)
    groups = (out_features, spec.groups)
    return Layer(
        spec=spec,
        codes=codes,
        packed=pack_rows(codes, bits),
        scale=(torch.rand(groups, generator=random) * 0.1 + 0.01).to(dtype),
        zero=(torch.rand(groups, generator=random) * 2**bits).to(dtype) if asymmetric else None,
        bias=torch.randn(out_features, generator=random).to(dtype),
        input_scale=torch.tensor([0.03125], dtype=dtype) if activation == "int8-tensor" else None,
        input_zero=torch.tensor([-9], dtype=torch.int8) if activation == "int8-tensor" and asymmetric else None,
    )


def weight_slowly(layer: Layer) -> Tensor:
    """(u − zero) · scale in float64, one element at a time."""
    spec = layer.spec
    weight = torch.empty(spec.out_features, spec.in_features, dtype=torch.float64)
    for o in range(spec.out_features):
        for i in range(spec.in_features):
            g = i // spec.group_size
            zero = 2 ** (spec.bits - 1) if layer.zero is None else layer.zero[o, g].item()
            weight[o, i] = (layer.codes[o, i].item() - zero) * layer.scale[o, g].item()
    return weight


def normalized_error(given: Tensor, exact: Tensor) -> float:
    """Mean squared error over the mean square of the exact values."""
    return float(((given.double() - exact) ** 2).sum() / (exact**2).sum().clamp_min(1e-300))


def product_error(layer: Layer, x: Tensor, y: Tensor, bias: Tensor | None) -> float:
    """Squared error over the squared length of all single products: the normalized error, but never by nearly 0."""
    weight = reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec).double()
    inputs = quantized_input(x, layer.spec, layer.input_scale, layer.input_zero).double()
    exact = inputs @ weight.T
    length = ((inputs**2) @ (weight**2).T).sum()
    if bias is not None:
        exact, length = exact + bias.double(), length + len(x) * (bias.double() ** 2).sum()
    return float(((y.double() - exact) ** 2).sum() / length.clamp_min(1e-300))
