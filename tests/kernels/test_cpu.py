"""The CPU backend: bit-equal to the reference, whatever the instruction set, threads and memory it uses."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from goldstick.errors import KernelError
from goldstick.kernels import Activation, cpu
from goldstick.kernels.cpu import CpuBackend
from goldstick.kernels.reference import ReferenceBackend
from tests.support.packed_layers import normalized_error, random_layer, weight_slowly

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

ours, reference = CpuBackend(), ReferenceBackend()
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
both_isas = pytest.mark.parametrize("isa", ["scalar", "best"])
SHAPES = [(1, 1, None), (3, 7, None), (5, 64, 8), (4, 96, 32), (3, 100, 25), (2, 50, 16), (300, 256, 128)]


@pytest.fixture
def choose_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar" if isa == "scalar" else "")


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@every_dtype
@both_isas
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.usefixtures("choose_isa")
def test_weights_are_bit_equal_to_the_reference(dtype: torch.dtype, bits: int, asymmetric: bool) -> None:
    for rows, columns, group_size in SHAPES:
        layer = random_layer(rows, columns, bits=bits, group_size=group_size, asymmetric=asymmetric, dtype=dtype)
        operands = (layer.packed, layer.scale, layer.zero, layer.spec)
        assert torch.equal(bits_of(ours.dequantize(*operands)), bits_of(reference.dequantize(*operands)))


@pytest.mark.parametrize("bits", range(1, 9))
@both_isas
@pytest.mark.usefixtures("choose_isa")
def test_weights_equal_a_slow_loop(bits: int) -> None:
    layer = random_layer(4, 43, bits=bits, group_size=16, asymmetric=True)
    weight = ours.dequantize(layer.packed, layer.scale, layer.zero, layer.spec)
    assert normalized_error(weight, weight_slowly(layer)) < 1e-13


@every_dtype
@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 5, 64), (0, 64)], ids=str)
def test_outputs_are_bit_equal_to_the_reference(
    dtype: torch.dtype, activation: Activation, shape: tuple[int, ...]
) -> None:
    for rows in (1, 48, 333):
        layer = random_layer(rows, 64, group_size=16, asymmetric=True, dtype=dtype, activation=activation)
        operands = (layer.packed, layer.scale, layer.zero, layer.bias, layer.spec)
        x = torch.randn(shape).to(dtype)
        assert torch.equal(bits_of(ours.linear(x, *operands)), bits_of(reference.linear(x, *operands)))


@every_dtype
@both_isas
@pytest.mark.usefixtures("choose_isa")
def test_extreme_scales_and_zeros_round_as_torch_rounds(dtype: torch.dtype) -> None:
    layer = random_layer(6, 32, bits=8, group_size=8, asymmetric=True, dtype=dtype)
    limits = torch.finfo(dtype)
    scale = torch.tensor([limits.max, limits.tiny, limits.tiny / 8, -0.3333])[None].repeat(6, 1).to(dtype)
    zero = torch.tensor([1e-9, 255.0, 127.4999, float("inf")])[None].repeat(6, 1).to(dtype)
    theirs = reference.dequantize(layer.packed, scale, zero, layer.spec)
    assert torch.equal(bits_of(ours.dequantize(layer.packed, scale, zero, layer.spec)), bits_of(theirs))


@every_dtype
@both_isas
@pytest.mark.usefixtures("choose_isa")
def test_numbers_that_are_not_numbers_stay_so(dtype: torch.dtype) -> None:
    layer = random_layer(2, 19, bits=3, dtype=dtype)
    scale = torch.full((2, 1), float("nan"), dtype=dtype)
    assert ours.dequantize(layer.packed, scale, None, layer.spec).isnan().all()


def test_one_thread_and_several_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(37, 48, bits=5, group_size=16)
    alone = ours.dequantize(layer.packed, layer.scale, None, layer.spec)
    monkeypatch.setattr(cpu, "_THREADED_FROM", 1)
    assert torch.equal(ours.dequantize(layer.packed, layer.scale, None, layer.spec), alone)


def test_strided_operands_are_taken_by_value() -> None:
    layer = random_layer(8, 64, group_size=8, asymmetric=True)
    assert layer.zero is not None
    expected = ours.dequantize(layer.packed, layer.scale, layer.zero, layer.spec)
    strided = [tensor.T.contiguous().T for tensor in (layer.packed, layer.scale, layer.zero)]
    assert torch.equal(ours.dequantize(*strided, layer.spec), expected)


def test_scratch_made_in_inference_mode_serves_outside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu._scratch, "buffer", None, raising=False)
    layer = random_layer(8, 16)
    operands = (layer.packed, layer.scale, None, None, layer.spec)
    x = torch.randn(2, 16)
    with torch.inference_mode():
        inside = ours.linear(x, *operands)
    outside = ours.linear(x.requires_grad_(), *operands)
    outside.sum().backward()
    assert torch.equal(inside, outside.detach())


def test_large_weights_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu._scratch, "buffer", None, raising=False)
    monkeypatch.setattr(cpu, "_SCRATCH_LIMIT", 100)
    layer = random_layer(8, 16)
    ours.linear(torch.randn(2, 16), layer.packed, layer.scale, None, None, layer.spec)
    assert cpu._scratch.buffer is None


def test_a_missing_extension_is_a_reason_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(8, 16)
    monkeypatch.setattr(cpu, "_missing", "the compiled kernels cannot be imported (no such file)")
    reason = ours.supports(layer.spec, torch.device("cpu"))
    assert reason is not None and "no such file" in reason


def test_wrong_operands_never_reach_the_extension() -> None:
    layer = random_layer(4, 32)
    with pytest.raises(KernelError, match="packed codes of shape"):
        ours.dequantize(layer.packed[:, :-1], layer.scale, None, layer.spec)
