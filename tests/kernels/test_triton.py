"""The Triton kernels: near float64, exact where they say so, and as the reference rounds.

They run in Triton's interpreter on the CPU; TRITON_INTERPRET=0 runs the compiled kernels on a GPU instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from goldstick.core.bitpack import pack_rows
from goldstick.core.rounded_inputs import fake_quantize_per_token, quantize_per_token
from goldstick.errors import KernelError
from goldstick.kernels import Activation, ops, triton
from goldstick.kernels.norm_op import rms_norm_quantize
from goldstick.kernels.reference import ReferenceBackend
from tests.support.packed_layers import Layer, product_error, random_layer
from tests.support.triton_device import device_of_triton

DEVICE = device_of_triton()

from goldstick.kernels.triton import (  # noqa: E402  (where Triton is)
    integers,
    partial_sums,
    quantize,
    tuning,
    weight_only,
    words,
)

ours, reference = triton.TritonBackend(), ReferenceBackend()
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
ALLOWED = {torch.float32: 1e-10, torch.float16: 1e-6, torch.bfloat16: 5e-5}

# Rows, columns, group size (None: whole rows), tokens: one of everything, tails of tiles, words and groups, and more.
SHAPES = [
    (1, 1, None, 1),
    (9, 40, 8, 3),
    (33, 300, None, 2),
    (70, 256, 128, 4),
    (40, 128, 64, 1),
    (31, 72, 32, 2),
    (24, 50, 24, 9),
]


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")


def here(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(DEVICE)


def run(layer: Layer, x: Tensor, bias: Tensor | None = None) -> Tensor:
    assert ours.supports(layer.spec, DEVICE) is None
    operands = map(here, (x, layer.packed, layer.scale, layer.zero, bias))
    return ours.linear(*operands, layer.spec).cpu()  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(torch.float32, 4), (torch.float16, 4), (torch.float16, 8), (torch.bfloat16, 4), (torch.bfloat16, 8)],
    ids=str,
)
def test_all_shapes_are_near_float64(dtype: torch.dtype, bits: int, activation: Activation) -> None:
    for number, (rows, columns, group_size, tokens) in enumerate(SHAPES):
        asymmetric = (number + bits // 4) % 2 == 0
        layer = random_layer(
            rows,
            columns,
            bits=bits,
            group_size=group_size,
            asymmetric=asymmetric,
            dtype=dtype,
            activation=activation,
            seed=number,
        )
        x = torch.randn(tokens, columns).to(dtype)
        bias = layer.bias if number % 3 else None
        y = run(layer, x, bias)
        assert y.dtype == dtype
        assert product_error(layer, x, y, bias) < ALLOWED[dtype], (layer.spec, tokens)


def test_tensors_on_several_devices_are_refused() -> None:
    layer, x = random_layer(8, 32, asymmetric=True, group_size=8), torch.randn(2, 32).to(DEVICE)
    operands = [x, *map(here, (layer.packed, layer.scale, layer.zero, layer.bias))]
    for place in range(len(operands)):
        given = [tensor.to("meta") if at == place else tensor for at, tensor in enumerate(operands)]  # type: ignore[union-attr]
        with pytest.raises(KernelError, match=f"lie on {DEVICE.type}.* and meta"):
            ours.linear(*given, layer.spec)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="and meta"):
        ours.dequantize(*operands[1:3], operands[3].to("meta"), layer.spec)  # type: ignore[arg-type, union-attr]
    with pytest.raises(KernelError, match="and meta"):
        triton.rms_norm_quantize(x, torch.ones(32, device="meta"), 1e-6)


@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
def test_tuned_kernels_are_launched_by_one_thread_at_a_time(
    activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    class Watched:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *given, **named: taken.append(tuning.launching.locked())

    for kernels in (weight_only, integers):
        monkeypatch.setattr(kernels, "_multiply", Watched())
    run(random_layer(8, 32, activation=activation), torch.randn(2, 32))
    assert taken == [True]
    assert not tuning.launching.locked()


def test_more_tokens_than_a_tile_holds_are_multiplied_tile_by_tile() -> None:
    layer = random_layer(17, 129, asymmetric=True)
    x = torch.randn(66, 129)
    assert product_error(layer, x, run(layer, x, layer.bias), layer.bias) < ALLOWED[torch.float32]


@every_dtype
@pytest.mark.parametrize("bits", [4, 8])
def test_dequantized_weights_are_those_of_the_reference(dtype: torch.dtype, bits: int) -> None:
    for (rows, columns, group_size, _), asymmetric in zip(SHAPES[1:3], (True, bits == 4), strict=True):
        layer = random_layer(rows, columns, bits=bits, group_size=group_size, asymmetric=asymmetric, dtype=dtype)
        weight = ours.dequantize(*map(here, (layer.packed, layer.scale, layer.zero)), layer.spec)  # type: ignore[arg-type]
        assert torch.equal(weight.cpu(), reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_sums_of_8_bit_products_are_exact_and_the_same_in_any_batch(bits: int, asymmetric: bool) -> None:
    layer = random_layer(33, 600, bits=bits, asymmetric=asymmetric, activation="int8-token")
    zero = torch.full((33, 1), float(2 ** (bits - 1)))
    if layer.zero is not None:
        zero = layer.zero.round_()
    x = torch.randn(18, 600)
    codes, scale = quantize_per_token(x)
    sums = codes.long() @ (layer.codes.long() - zero.long()).T
    y = run(layer, x)
    assert torch.equal(y, sums.float() * (layer.scale.T * scale))
    assert tuning.splits(3, layer.spec, 128, DEVICE)[0] > 1, "a few tokens are to be summed in parts"
    assert torch.equal(run(layer, x[5:8]), y[5:8])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_codes_do_not_overflow(sign: int) -> None:
    columns = 1024
    for bits, group_size in ((8, None), (8, 128), (4, 128)):
        layer = random_layer(3, columns, bits=bits, group_size=group_size, activation="int8-token")
        largest = pack_rows(torch.full((3, columns), 2**bits - 1 if sign > 0 else 0, dtype=torch.uint8), bits)
        step = 2 ** (bits - 1) - 1 if sign > 0 else -(2 ** (bits - 1))
        operands = map(here, (torch.full((2, columns), -127.5), largest, torch.ones_like(layer.scale), None, None))
        y = ours.linear(*operands, layer.spec)  # type: ignore[arg-type]
        assert torch.equal(y.cpu(), torch.full((2, 3), -128.0 * step * columns))


def test_rounding_to_8_bits_gives_the_codes_of_the_reference() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = (torch.randn(5, 5000) * torch.logspace(-4, 3, 5)[:, None]).to(dtype)
        x[0] = 0
        codes, scale, sums = quantize.quantize_tokens(x.to(DEVICE))
        assert torch.equal(codes.cpu().to(dtype) * scale.cpu(), fake_quantize_per_token(x))
        assert torch.equal(sums.cpu().long(), codes.cpu().long().sum(dim=1))


@pytest.mark.parametrize(
    ("dtype", "columns"), [(torch.float32, 4100), (torch.float16, 1), (torch.bfloat16, 300)], ids=str
)
def test_a_norm_and_the_rounding_after_it_are_one_step(dtype: torch.dtype, columns: int) -> None:
    tokens = 1 if columns > 1000 else 2
    x, weight = torch.randn(tokens, 1, columns).to(dtype), torch.rand(columns).to(dtype)
    codes, scale = rms_norm_quantize(x.to(DEVICE), weight.to(DEVICE), 1e-5)
    assert codes.dtype == torch.int8 and codes.shape == x.shape
    assert scale.dtype == dtype and scale.shape == (tokens, 1, 1)
    wide = x.double()
    exact = wide / (wide.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    steps = exact.abs().amax(dim=-1, keepdim=True) / 127.5
    error = (codes.cpu().double() * scale.cpu().double() - exact).abs() / steps
    assert error.max() < 0.5 + 1000 * torch.finfo(dtype).eps, "half a step, and what the dtype rounds"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_BACKEND", "reference")
        theirs, their_scale = rms_norm_quantize(x, weight, 1e-5)
    torch.testing.assert_close(scale.cpu(), their_scale)
    assert (codes.cpu().int() - theirs.int()).abs().max() <= 1
    assert (codes.cpu() != theirs).float().mean() < 1e-3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
def test_what_is_not_a_number_spoils_its_token_and_no_other(activation: Activation, value: float) -> None:
    layer = random_layer(18, 300, asymmetric=True, activation=activation)
    x = torch.randn(3, 300)
    clean = run(layer, x)
    x[1, 150] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy speaks of what a GPU computes in silence
        y = run(layer, x)
    assert not y[1].isfinite().any()
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_parts_of_a_row_are_added_in_order() -> None:
    partial = torch.randn(5, 7, 150) * torch.logspace(0, 6, 5)[:, None, None]
    bias = torch.randn(150)
    expected = torch.zeros(7, 150)
    for part in partial:
        expected = expected + part
    y = torch.empty(7, 150, device=DEVICE)
    partial_sums.add_partial_sums(partial.to(DEVICE), bias.to(DEVICE), y)
    assert torch.equal(y.cpu(), expected + bias)


def test_a_code_written_into_a_float_is_the_number_it_should_be() -> None:
    for dtype, room, worth, bits in (
        (torch.float16, words.FLOAT16_ROOM, words.FLOAT16_WORTH, 8),
        (torch.bfloat16, words.BFLOAT16_ROOM, words.BFLOAT16_WORTH, 7),
    ):
        codes = torch.arange(2**bits, dtype=torch.int16)
        numbers = (codes | room.value).view(dtype)
        assert torch.equal(numbers.float() - worth.value, codes.float())


@every_dtype
def test_operands_may_lie_anywhere_and_in_any_order(dtype: torch.dtype) -> None:
    layer = random_layer(40, 256, group_size=128, asymmetric=True, dtype=dtype)
    x = torch.randn(6, 256).to(dtype).to(DEVICE)
    assert layer.zero is not None
    operands = [tensor.to(DEVICE) for tensor in (layer.packed, layer.scale, layer.zero, layer.bias)]
    expected = ours.linear(x, *operands, layer.spec)

    def moved(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)

    strided = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in operands]
    for inputs, weight in ((moved(x), map(moved, operands)), (x.T.contiguous().T, strided)):
        assert torch.equal(ours.linear(inputs, *weight, layer.spec), expected)
    wide_zero = [operands[0], operands[1], operands[2].double() * (1 + 1e-9), operands[3]]
    assert torch.equal(ours.linear(x, *wide_zero, layer.spec), expected), "zeros are rounded to the layer's dtype"


def test_the_operators_run_on_it_and_pass_torchs_own_checks() -> None:
    layer = random_layer(12, 32, group_size=8)
    x, packed, scale, bias = (
        tensor.to(DEVICE) for tensor in (torch.randn(2, 32), layer.packed, layer.scale, layer.bias)
    )
    y = ops.quantized_linear(x, packed, scale, None, bias, bits=4, group_size=8, in_features=32)
    assert torch.equal(y, ours.linear(x, packed, scale, None, bias, layer.spec))
    weight = ops.dequantize(packed, scale, None, bits=4, group_size=8, in_features=32)
    assert torch.equal(weight, ours.dequantize(packed, scale, None, layer.spec))
    opcheck(torch.ops.goldstick.rms_norm_quantize.default, (x[:1], torch.ones(32, device=DEVICE), 1e-6))
