"""Random quantized layers, and the slow loop in float64 that says what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.scheme import Scheme
from goldstick.kernels import Activation, WeightSpec
from goldstick.kernels.reference import ReferenceBackend

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
    global_scale: Tensor | None = None


def random_layer(
    out_features: int,
    in_features: int,
    *,
    bits: int = 4,
    group_size: int | None = None,
    asymmetric: bool = False,
    dtype: torch.dtype = torch.float32,
    activation: Activation = None,
    element: str = INTEGER,
    scaled: bool = False,
    seed: int = 0,
) -> Layer:
    """Codes drawn evenly; of an element with the width of its codes, and where ``scaled`` with a scale of scales."""
    random = torch.Generator().manual_seed(seed)
    bits = ELEMENTS[element].bits if element != INTEGER else bits
    spec = WeightSpec(
        bits=bits,
        group_size=group_size or in_features,
        in_features=in_features,
        out_features=out_features,
        has_zero=asymmetric,
        dtype=dtype,
        activation=activation,
        element=element,
        tensor_scaled=scaled,
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
        global_scale=torch.tensor([[3.7]]) if scaled else None,
    )


def superblock_layer(
    out_features: int,
    in_features: int,
    scheme: str,
    *,
    dtype: torch.dtype = torch.float32,
    activation: Activation = None,
    seed: int = 0,
) -> Layer:
    """Codes of superblocks; some groups have the scale 0, and of those with minimums some the minimum 0."""
    random, grid = torch.Generator().manual_seed(seed), Scheme.parse(scheme).weight
    assert grid.group_size is not None and grid.superblock is not None and grid.scale is not None
    spec = WeightSpec(
        bits=grid.bits,
        group_size=grid.group_size,
        in_features=in_features,
        out_features=out_features,
        has_zero=grid.minimums,
        dtype=dtype,
        activation=activation,
        element=grid.element,
        superblocks=in_features // grid.superblock,
    )
    groups, most = (out_features, spec.groups), 1 << grid.scale.bits
    codes = torch.randint(0, 1 << grid.bits, (out_features, in_features), dtype=torch.uint8, generator=random)
    scale = torch.randint(0, most, groups, generator=random) - (most // 2 if grid.symmetric else 0)
    zero = torch.randint(0, most, groups, generator=random) * (torch.rand(groups, generator=random) < 0.8)
    planes = (out_features, 1 + grid.minimums, spec.superblocks)
    return Layer(
        spec=spec,
        codes=codes,
        packed=pack_rows(codes, grid.bits),
        scale=(scale * (torch.rand(groups, generator=random) < 0.9)).to(dtype),
        zero=zero.float() if grid.minimums else None,
        bias=torch.randn(out_features, generator=random).to(dtype),
        input_scale=torch.tensor([0.03125], dtype=dtype) if activation == "int8-tensor" else None,
        global_scale=(torch.rand(planes, generator=random) * 0.01).half().float(),
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
    weight = reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec, layer.global_scale).double()
    inputs = quantized_input(x, layer.spec.activation, layer.input_scale, layer.input_zero).double()
    exact = inputs @ weight.T
    length = ((inputs**2) @ (weight**2).T).sum()
    if bias is not None:
        exact, length = exact + bias.double(), length + len(x) * (bias.double() ** 2).sum()
    return float(((y.double() - exact) ** 2).sum() / length.clamp_min(1e-300))
