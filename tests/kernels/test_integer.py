"""The integer backend: close to float64, exact where it says so, and the same bits however it is run."""

from __future__ import annotations

import dataclasses
import os
import random

import pytest
import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.core.element import ELEMENTS
from goldstick.core.rounded_inputs import fake_quantize_per_tensor, fake_quantize_per_token
from goldstick.kernels import Activation, WeightSpec, cpu
from goldstick.kernels.cpu import integer
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from goldstick.kernels.reference import ReferenceBackend
from tests.support.instructions import AVAILABLE
from tests.support.packed_layers import Layer, product_error, random_layer

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

ours, reference = IntegerCpuBackend(), ReferenceBackend()
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
every_activation = pytest.mark.parametrize("activation", [None, "int8-token", "int4-token", "int8-tensor"])

TOKENS = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 193, 200]
SIZES = [1, 8, 15, 16, 24, 31, 32, 33, 64, 96, 127, 129, 192, 255, 257, 512, 1000]
GROUPS = [None, 1, 7, 8, 16, 25, 32, 64, 96, 100, 128, 256]
SAMPLES = 24  # of each dtype, activation and width


def run(layer: Layer, x: Tensor, bias: Tensor | None = None) -> Tensor:
    weight = layer.packed, layer.scale, layer.zero, bias, layer.spec
    return ours.linear(x, *weight, layer.input_scale, layer.input_zero, layer.global_scale)


def sample(choice: random.Random, bits: int, dtype: torch.dtype, activation: Activation) -> tuple[Layer, Tensor]:
    columns, rows, tokens = choice.choice(SIZES), choice.choice(SIZES), choice.choice(TOKENS)
    if rows * columns * tokens > 1 << 22:
        tokens = choice.choice(TOKENS[:6])
    group_size = choice.choice(GROUPS)
    layer = random_layer(
        rows,
        columns,
        bits=bits,
        group_size=None if group_size is None else min(group_size, columns),
        asymmetric=choice.random() < 0.5,
        dtype=dtype,
        activation=activation,
        seed=choice.randrange(1 << 30),
    )
    return layer, torch.randn(tokens, columns, generator=torch.Generator().manual_seed(choice.randrange(99))).to(dtype)


@every_dtype
@every_activation
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_all_shapes_are_near_float64_and_the_same_in_any_batch_on_any_instructions(
    dtype: torch.dtype, activation: Activation, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    choice = random.Random(f"{dtype} {activation} {bits}")
    exact = 5e-9 if activation is None else 1e-11
    allowed = {torch.float32: exact, torch.bfloat16: 5e-5, torch.float16: 1e-6}[dtype]
    for _ in range(SAMPLES if bits in (4, 8) else SAMPLES // 4):
        layer, x = sample(choice, bits, dtype, activation)
        bias = layer.bias if choice.random() < 0.5 else None
        monkeypatch.setenv("GOLDSTICK_ISA", "")
        y = run(layer, x, bias)
        assert product_error(layer, x, y, bias) < allowed, (layer.spec, len(x))
        for token in {0, len(x) // 2, len(x) - 1}:
            assert torch.equal(run(layer, x[token], bias), y[token]), (layer.spec, len(x), token)
        for isa in AVAILABLE[:-1]:
            monkeypatch.setenv("GOLDSTICK_ISA", isa)
            assert torch.equal(run(layer, x, bias), y), (layer.spec, len(x), isa)


@every_dtype
@pytest.mark.parametrize("element", ["e2m1", "iq4", "e2m3"])
def test_codes_of_a_table_are_near_float64_and_the_same_in_any_batch(
    element: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    allowed = {torch.float32: 5e-9, torch.bfloat16: 5e-5, torch.float16: 1e-6}[dtype]
    for group_size, scaled, activation in (
        (16, True, None),
        (32, False, None),
        (7, True, "int8-token"),
        (None, False, None),
    ):
        layer = random_layer(
            33, 160, group_size=group_size, dtype=dtype, activation=activation, element=element, scaled=scaled
        )
        x = torch.randn(18, 160).to(dtype)
        y = run(layer, x, layer.bias)
        assert product_error(layer, x, y, layer.bias) < allowed
        for token in (0, 9, 17):
            assert torch.equal(run(layer, x[token], layer.bias), y[token])
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        assert torch.equal(run(layer, x, layer.bias), y)
        monkeypatch.undo()


def test_codes_of_a_table_are_multiplied_exactly() -> None:
    layer = random_layer(16, 64, group_size=64, element="e2m1")
    x = torch.zeros(3, 64)
    x[:, 5] = torch.tensor([1.0, -2.0, 32639.0])  # of 16 bits, the last a whole number of steps
    values = ELEMENTS["e2m1"].table()[layer.codes[:, 5].long()]
    exact = values.double() * layer.scale[:, 0].double() * 32639
    assert torch.equal(run(layer, x)[2].double(), exact.float().double())


def test_rows_may_have_scales_of_scales_of_their_own() -> None:
    layer = random_layer(20, 64, group_size=16, element="e2m1", scaled=True)
    x, divisors = torch.randn(2, 64), torch.tensor([[2.0], [8.0]]).repeat(10, 1)
    each = dataclasses.replace(layer, global_scale=divisors)
    one = dataclasses.replace(layer, global_scale=torch.ones(1, 1))
    assert torch.equal(run(each, x), run(one, x) / divisors.T)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [4096, 4099])
def test_long_rows_are_near_float64(bits: int, columns: int) -> None:
    layer = random_layer(257, columns, bits=bits, group_size=128, asymmetric=True)
    x = torch.randn(13, columns)
    y = run(layer, x, layer.bias)
    assert product_error(layer, x, y, layer.bias) < 5e-9
    x[:, 7] *= 100  # an outlier takes precision from its own group alone
    y = run(layer, x, layer.bias)
    assert product_error(layer, x, y, layer.bias) < 1e-7
    assert torch.equal(run(layer, x[3:5], layer.bias), y[3:5])


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    layer = random_layer(100, 256, group_size=64, asymmetric=True)
    x = torch.randn(400, 256)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(run(layer, x))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_sums_of_8_bit_products_are_exact_before_they_are_scaled(bits: int, tokens: int) -> None:
    layer = random_layer(33, 5000, bits=bits, activation="int8-token")
    x = torch.randn(tokens, 5000)
    scale = x.abs().amax(dim=-1) / 127.5
    codes = (x / scale[:, None]).clamp(-128, 127).round().long()
    sums = codes @ (layer.codes.long() - 2 ** (bits - 1)).T
    assert torch.equal(run(layer, x), sums.float() * (layer.scale.T * scale[:, None]))


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_codes_do_not_overflow(tokens: int, sign: int) -> None:
    columns = 40_000  # two spans, the first as long as one can be
    layer = random_layer(3, columns, bits=8, asymmetric=True, activation="int8-tensor")
    everything = pack_rows(torch.full((3, columns), 255, dtype=torch.uint8), 8)
    zero, x = torch.zeros(3, 1), torch.full((tokens, columns), 1e4 * sign)
    for input_zero in (-128, 0, 127):
        operands = (everything, torch.ones(3, 1), zero, None, layer.spec)
        y = ours.linear(x, *operands, torch.ones(1), torch.tensor([input_zero], dtype=torch.int8))
        code = (127 if sign > 0 else -128) - input_zero
        assert torch.equal(y, torch.full((tokens, 3), float(255 * code * columns)))
    plain = WeightSpec(bits=8, group_size=columns, in_features=columns, out_features=3, has_zero=True, dtype=x.dtype)
    y = ours.linear(x, everything, torch.ones(3, 1), zero, None, plain)
    torch.testing.assert_close(y, torch.full((tokens, 3), 255.0 * 1e4 * sign * columns), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bits", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9], ids=["no pair", "some pairs", "most pairs"])
@pytest.mark.parametrize("tokens", [3, 8, 9])
def test_neighbouring_extremes_are_summed_exactly(bits: int, share: float, tokens: int) -> None:
    columns = 1100
    layer = random_layer(35, columns, bits=bits, activation="int8-token")
    layer.codes[:20] = 2**bits - 1
    layer.codes[20:25] = 0
    x = torch.randint(-3, 4, (tokens, columns)).float()
    pairs = torch.rand(tokens, columns // 2) < share  # two neighbours as large as can be, of one sign
    signs = torch.randint(0, 2, pairs.shape) * 2 - 1
    x = torch.where(pairs, 127.5 * signs, torch.zeros(())).repeat_interleave(2, dim=1) + x * ~pairs.repeat_interleave(
        2, dim=1
    )
    x[:, -1] = 127.5  # makes the scale 1
    sums = x.clamp(-128, 127).round().long() @ (layer.codes.long() - 2 ** (bits - 1)).T
    y = ours.linear(x, pack_rows(layer.codes, bits), layer.scale, None, None, layer.spec)
    assert torch.equal(y, sums.float() * layer.scale.T)


@every_dtype
@pytest.mark.parametrize("isa", ["scalar", ""], ids=["scalar", "best"])
def test_8_bit_activations_have_the_codes_of_the_reference(
    dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    size = 96
    codes = torch.full((size, size), 128, dtype=torch.uint8)
    codes.fill_diagonal_(129)  # the identity
    x = (torch.randn(60, size) * torch.logspace(-6, 3, 60)[:, None]).to(dtype)
    x[0] = 0
    spec = WeightSpec(bits=8, group_size=32, in_features=size, out_features=size, has_zero=False, dtype=dtype)
    weight = (pack_rows(codes, 8), torch.ones(size, 3, dtype=dtype), None, None)
    token = WeightSpec(**{**vars(spec), "activation": "int8-token"})
    assert torch.equal(ours.linear(x, *weight, token), fake_quantize_per_token(x))
    tensor = WeightSpec(**{**vars(spec), "activation": "int8-tensor"})
    scale = torch.tensor([0.0371]).to(dtype)
    for zero in (None, torch.tensor([-101], dtype=torch.int8)):
        found = ours.linear(x, *weight, tensor, scale, zero)
        assert torch.equal(found, fake_quantize_per_tensor(x, scale, zero))


@every_activation
@pytest.mark.parametrize("tokens", [3, 20])
def test_what_is_not_a_number_spoils_its_token_and_no_other(activation: Activation, tokens: int) -> None:
    layer = random_layer(18, 300, group_size=100, asymmetric=True, activation=activation)
    x = torch.randn(tokens, 300)
    clean = run(layer, x)
    for value in (float("nan"), float("inf")):
        spoiled = x.clone()
        spoiled[1, 150] = value
        y = run(layer, spoiled)
        static = activation == "int8-tensor" and value == float("inf")  # clamped, as the reference does
        assert torch.equal(y[1].isnan(), torch.full((18,), not static))
        assert torch.equal(y[[0, 2]], clean[[0, 2]])
        theirs = reference.linear(
            spoiled, layer.packed, layer.scale, layer.zero, None, layer.spec, layer.input_scale, layer.input_zero
        )
        assert torch.equal(theirs[1].isfinite(), y[1].isfinite())


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-30, 1e-3, 1e30])
def test_inputs_of_any_size_keep_their_precision(size: float) -> None:
    layer = random_layer(64, 256, group_size=128)
    x = torch.randn(4, 256) * size
    y = run(layer, x).double()
    weight = reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec).double()
    error = (y - x.double() @ weight.T).abs().max()
    assert error < 1e-3 * size + 1e-35, "half a step of 16 bits, or next to the smallest floats"
    assert torch.equal(run(layer, torch.zeros(2, 256)), torch.zeros(2, 64))


@every_dtype
def test_operands_may_lie_anywhere_and_in_any_order(dtype: torch.dtype) -> None:
    layer = random_layer(40, 200, group_size=40, asymmetric=True, dtype=dtype)
    x = torch.randn(6, 200).to(dtype)
    expected = run(layer, x, layer.bias)

    def moved(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)

    assert layer.zero is not None
    operands = [layer.packed, layer.scale, layer.zero, layer.bias]
    assert torch.equal(ours.linear(moved(x), *map(moved, operands), layer.spec), expected)
    strided = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in operands]
    assert torch.equal(ours.linear(x.T.contiguous().T, *strided, layer.spec), expected)
    assert torch.equal(ours.linear(x.repeat(2, 2)[:6, 200:], *operands, layer.spec), expected)
    assert torch.equal(ours.linear(x.view(2, 3, 200), *operands, layer.spec), expected.view(2, 3, 40))


def test_zeros_are_rounded_to_the_layers_dtype_as_the_reference_rounds_them() -> None:
    layer = random_layer(40, 96, bits=8, group_size=32, asymmetric=True, dtype=torch.bfloat16)
    assert layer.zero is not None
    x = torch.randn(5, 96).bfloat16()
    expected = run(layer, x)
    nudged = layer.zero.float() + 1e-6 * layer.zero.float()
    for zero in (nudged, nudged.double()):
        assert torch.equal(ours.linear(x, layer.packed, layer.scale, zero, None, layer.spec), expected)
