"""The reference backend against a slow loop, and bit for bit against compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from goldstick.core.rounded_inputs import fake_quantize_per_tensor, fake_quantize_per_token, quantize_per_token
from goldstick.errors import KernelError
from goldstick.kernels import WeightSpec
from goldstick.kernels.reference import ReferenceBackend
from tests.support.packed_layers import normalized_error, random_layer, weight_slowly

reference = ReferenceBackend()
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("columns", "group_size"), [(32, None), (24, 8), (21, 6)])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_dequantization_equals_a_slow_loop(bits: int, columns: int, group_size: int | None, asymmetric: bool) -> None:
    layer = random_layer(5, columns, bits=bits, group_size=group_size, asymmetric=asymmetric)
    weight = reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec)
    assert normalized_error(weight, weight_slowly(layer)) < 1e-13


def test_the_linear_is_the_matrix_product() -> None:
    layer = random_layer(6, 40, group_size=8, asymmetric=True)
    x = torch.randn(2, 3, 40)
    y = reference.linear(x, layer.packed, layer.scale, layer.zero, layer.bias, layer.spec)
    exact = x.double() @ weight_slowly(layer).T + layer.bias.double()
    assert y.shape == (2, 3, 6)
    assert normalized_error(y, exact) < 1e-12


@every_dtype
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("group_size", [16, None])
def test_weights_are_bit_equal_to_those_of_compressed_tensors(
    dtype: torch.dtype, bits: int, asymmetric: bool, group_size: int | None
) -> None:
    layer = random_layer(12, 64, bits=bits, group_size=group_size, asymmetric=asymmetric, dtype=dtype)
    middle = 2 ** (bits - 1)
    zero = None if layer.zero is None else layer.zero.float().round().clamp(0, 2**bits - 1)
    args = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=not asymmetric,
        strategy="group" if group_size else "channel",
        group_size=group_size,
    )
    theirs = dequantize(
        (layer.codes.to(torch.int16) - middle).to(torch.int8),
        layer.scale,
        None if zero is None else (zero - middle).to(torch.int8),
        args,
    )
    assert torch.equal(reference.dequantize(layer.packed, layer.scale, zero, layer.spec), theirs)


@every_dtype
@pytest.mark.parametrize("bits", [8, 4])
def test_activations_are_bit_equal_to_those_of_compressed_tensors(dtype: torch.dtype, bits: int) -> None:
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="token", dynamic=True)
    x = (torch.randn(3, 50, 96) * torch.logspace(-6, 3, 50)[:, None]).to(dtype)
    x[0, 0] = 0
    x[1, 7, 3] = x[1, 7].abs().max() * 2
    scale, zero = compute_dynamic_scales_and_zp(x, args, torch.nn.Identity())
    assert torch.equal(fake_quantize_per_token(x, bits), fake_quantize(x, scale, zero, args))


@every_dtype
@pytest.mark.parametrize("symmetric", [True, False])
def test_static_activations_are_bit_equal_to_those_of_compressed_tensors(dtype: torch.dtype, symmetric: bool) -> None:
    args = QuantizationArgs(num_bits=8, type="int", symmetric=symmetric, strategy="tensor", dynamic=False)
    x = (torch.randn(3, 50, 96) * torch.logspace(-6, 3, 50)[:, None]).to(dtype)  # some of it beyond the range
    scale = torch.tensor([0.0371]).to(dtype)
    zero = None if symmetric else torch.tensor([-101], dtype=torch.int8)
    found = fake_quantize_per_tensor(x, scale, zero)
    assert torch.equal(found, fake_quantize(x, scale, zero, args))
    assert len(found.unique()) > 100


def test_static_activations_equal_a_slow_loop() -> None:
    x = torch.tensor([-9.0, -0.75, -0.25, 0.0, 0.25, 0.75, 1.0, 31.6, 90.0])
    found = fake_quantize_per_tensor(x, torch.tensor([0.5]), torch.tensor([-64], dtype=torch.int8))
    codes = [min(max(round(value / 0.5 - 64), -128), 127) for value in x.tolist()]
    assert found.tolist() == [(code + 64) * 0.5 for code in codes]
    assert fake_quantize_per_tensor(torch.empty(0, 8), torch.ones(1), None).shape == (0, 8)


def test_a_token_of_zeros_stays_zero() -> None:
    assert torch.equal(fake_quantize_per_token(torch.zeros(2, 8)), torch.zeros(2, 8))
    assert fake_quantize_per_token(torch.empty(0, 8)).shape == (0, 8)


def test_quantized_activations_go_into_the_product() -> None:
    layer = random_layer(6, 32, bits=8, activation="int8-token")
    x = torch.randn(4, 32)
    y = reference.linear(x, layer.packed, layer.scale, None, None, layer.spec)
    weight = reference.dequantize(layer.packed, layer.scale, None, layer.spec)
    assert torch.equal(y, F.linear(fake_quantize_per_token(x), weight))
    assert not torch.equal(y, F.linear(x, weight))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"bits": 9}, "1 to 8 bits"),
        ({"group_size": 33}, "group of 33 columns"),
        ({"group_size": 0}, "group of 0 columns"),
        ({"dtype": torch.int32}, "floating dtype"),
        ({"activation": "int4"}, "unknown activation 'int4'"),
        ({"in_features": 0, "group_size": 1}, "is not a linear layer's"),
    ],
)
def test_impossible_layers_are_refused(change: dict[str, object], complaint: str) -> None:
    fields: dict[str, object] = {
        "bits": 4,
        "group_size": 32,
        "in_features": 32,
        "out_features": 8,
        "has_zero": False,
        "dtype": torch.float32,
    }
    with pytest.raises(KernelError, match=complaint):
        WeightSpec(**{**fields, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("rounding", [fake_quantize_per_token, quantize_per_token])
def test_nothing_is_copied_to_a_gpu_while_tokens_are_rounded_there(rounding: Callable[[Tensor], object]) -> None:
    copied = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            if any(isinstance(one, Tensor) and one.is_cpu for one in given):
                copied.append(str(operator))
            return operator(*given, **(named or {}))

    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda", dtype=torch.float16)
        with Watched():
            rounding(x)
    assert not copied, "a graph that is captured cannot hold a copy from the host"
