"""Superblocks on the CPU: weights are the reference's, products near float64, and the same bits however run."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from torch import Tensor

from goldstick.kernels import Activation, cpu
from goldstick.kernels.base import superblock_steps
from goldstick.kernels.cpu import CpuBackend, integer
from goldstick.kernels.cpu.float_codes import FloatCodesCpuBackend
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from goldstick.kernels.prepared import Operands, PreparedLinear
from goldstick.kernels.reference import ReferenceBackend
from tests.support.guarded import before_a_forbidden_page
from tests.support.instructions import AVAILABLE, every_isa
from tests.support.packed_layers import Layer, product_error, superblock_layer

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

ours, reference = IntegerCpuBackend(), ReferenceBackend()
every_type = pytest.mark.parametrize("scheme", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
TOKENS = (1, 2, 3, 4, 5, 9, 16, 17, 35, 100)


def operands(layer: Layer) -> Operands:
    return layer.packed, layer.scale, layer.zero, layer.bias, layer.input_scale, layer.input_zero, layer.global_scale


def run(layer: Layer, x: Tensor) -> Tensor:
    weight = layer.packed, layer.scale, layer.zero, layer.bias, layer.spec
    return ours.linear(x, *weight, layer.input_scale, layer.input_zero, layer.global_scale)


def prepared(layer: Layer, interleaved: bool) -> PreparedLinear:
    spec = layer.spec
    settings = spec.bits, spec.group_size, spec.in_features, spec.activation or ""
    return PreparedLinear(*settings, interleaved, spec.element)


def given(layer: Layer, tokens: int) -> Tensor:
    return (torch.randn(tokens, layer.spec.in_features) * 3).to(layer.spec.dtype)


@every_type
@every_dtype
@every_isa
def test_weights_are_bit_equal_to_the_reference(
    scheme: str, dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    layer = superblock_layer(37, 512, scheme, dtype=dtype)
    weight = layer.packed, layer.scale, layer.zero, layer.spec, layer.global_scale
    expected = reference.dequantize(*weight)
    backends = [FloatCodesCpuBackend() if scheme == "iq4_xs" else CpuBackend(), ours]
    for backend in backends:
        assert backend.supports(layer.spec, torch.device("cpu")) is None
        assert torch.equal(backend.dequantize(*weight), expected)
        assert backend.dequantize(*weight).signbit().equal(expected.signbit())


@every_type
@every_dtype
@pytest.mark.parametrize("activation", [None, "int8-token", "int8-tensor"])
def test_products_are_near_float64_and_the_same_bits_however_they_are_run(
    scheme: str, dtype: torch.dtype, activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    layer = superblock_layer(37, 512, scheme, dtype=dtype, activation=activation)
    x = given(layer, 100)
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    expected = run(layer, x)
    exact = 2e-9 if activation is None else 1e-11
    assert product_error(layer, x, expected, layer.bias) < {torch.float32: exact, torch.bfloat16: 5e-5}.get(dtype, 1e-6)
    for isa in AVAILABLE:
        monkeypatch.setenv("GOLDSTICK_ISA", isa)
        counts = TOKENS[:-2] if isa == "scalar" else TOKENS  # which takes long
        for tokens in counts:
            assert torch.equal(run(layer, x[:tokens]), expected[:tokens]), (isa, tokens)
        for interleaved in (True, False):
            layers = prepared(layer, interleaved)
            for tokens in counts:
                found = layers(x[:tokens], operands(layer))
                assert found is not None
                assert torch.equal(found, expected[:tokens]), (isa, tokens, interleaved)
            assert layers.reads_copy == (interleaved and isa != "scalar")


@every_type
def test_any_number_of_threads_gives_the_same_bits(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    layer = superblock_layer(150, 512, scheme)
    x, found = given(layer, 70), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(run(layer, x))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_group_without_a_scale_keeps_its_minimum() -> None:
    layer = superblock_layer(5, 256, "q4_k")
    assert layer.zero is not None and layer.global_scale is not None
    minimums = superblock_steps(layer.scale, layer.zero, layer.global_scale)[1]
    assert minimums is not None
    layer = dataclasses.replace(layer, scale=torch.zeros_like(layer.scale), bias=torch.zeros_like(layer.bias))
    x = torch.ones(3, 256) * 32639 / 32  # of each group the sum is exact
    exact = -(minimums.double().sum(-1) * 32639)
    for interleaved in (True, False):
        found = prepared(layer, interleaved)(x, operands(layer))
        assert found is not None
        torch.testing.assert_close(found.double(), exact.expand(3, 5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["scale", "zero"])
@pytest.mark.parametrize("number", [0.5, 300.0])
def test_scales_that_are_no_integers_of_8_bits_are_read_as_floats(name: str, number: float) -> None:
    layer = superblock_layer(19, 256, "q4_k")
    getattr(layer, name)[7, 3] = number
    x = given(layer, 5)
    found = prepared(layer, True)(x, operands(layer))
    assert found is not None
    assert product_error(layer, x, found, layer.bias) < 2e-9
    assert torch.equal(run(layer, x), found)


@pytest.mark.parametrize("name", ["packed", "scale", "zero", "global_scale"])
def test_numbers_that_change_in_place_are_seen(name: str) -> None:
    layer = superblock_layer(19, 256, "q5_k")
    layers, x = prepared(layer, True), given(layer, 2)
    before = layers(x, operands(layer))
    assert before is not None
    tensor: Tensor = getattr(layer, name)
    tensor.bitwise_not_() if name == "packed" else tensor.mul_(0.5)
    after = layers(x, operands(layer))
    assert after is not None
    assert not torch.equal(before, after)
    assert torch.equal(after, run(layer, x))


@every_type
def test_nothing_past_the_end_of_a_weight_is_read(scheme: str) -> None:
    layer = superblock_layer(18, 256, scheme)
    x = given(layer, 3)
    expected = run(layer, x)
    guarded = [None if one is None else before_a_forbidden_page(one) for one in operands(layer)]
    packed, scale, zero, bias, _, _, global_scale = [None if one is None else one[0] for one in guarded]
    assert packed is not None and scale is not None
    for interleaved in (True, False):
        found = prepared(layer, interleaved)(x, (packed, scale, zero, bias, None, None, global_scale))
        assert found is not None
        assert torch.equal(found, expected)
    for one in guarded:
        if one is not None:
            one[1]()


@pytest.mark.parametrize(
    ("shape", "message"),
    [((4, 1, 2), r"global_scale has the shape \[4, 1, 2\], expected \[4, 2, 2\]"), ((4, 2, 3), "3 superblocks")],
)
def test_scales_of_superblocks_of_other_shapes_are_refused(shape: tuple[int, ...], message: str) -> None:
    layer = superblock_layer(4, 512, "q4_k")
    y, x = torch.empty(2, 4), torch.ones(2, 512)
    with pytest.raises(ValueError, match=message):
        cpu._C.quantized_linear(
            x, layer.packed, layer.scale, layer.zero, None, y, 4, 32, global_scale=torch.ones(shape)
        )
