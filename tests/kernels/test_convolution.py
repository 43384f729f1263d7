"""Convolutions on codes against slow exact integers, and against what rounding and dequantizing gives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from goldstick.errors import KernelError
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the operators)
from tests.support.quantized_convolutions import (
    ACTIVATIONS,
    LARGE,
    SHAPES,
    Case,
    every_activation,
    every_isa,
    every_shape,
    needs_extension,
    take_isa,
)


@needs_extension
@every_shape
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
@every_isa
def test_8_bit_inputs_give_exact_sums(
    shape: tuple[Any, ...], activation: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    for bits, batch in itertools.product((8, 3), (1, 2)):
        case = Case(shape, activation, bits=bits, batch=batch)
        assert torch.equal(case.run(), case.exact())


@needs_extension
@every_shape
def test_float_inputs_are_rounded_to_16_bits(shape: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(shape, "")
    found = case.run()
    torch.testing.assert_close(found, case.exact(), rtol=1e-6, atol=1e-6 * float(found.abs().max()))
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    assert torch.equal(case.run(), found)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    whole = case.run()
    assert float((found - whole).square().sum() / whole.square().sum()) < 1e-8


@every_shape
@every_activation
def test_every_backend_gives_what_rounding_and_dequantizing_gives(
    shape: tuple[Any, ...], activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(shape, activation)
    found = case.run()
    for backend in ("reference", "cpu"):
        monkeypatch.setenv("GOLDSTICK_BACKEND", backend)
        torch.testing.assert_close(case.run(), found, rtol=1e-4, atol=1e-4 * float(found.abs().max()))


@needs_extension
@every_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_layers_round_the_same_sums(shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    case = Case(shape, "int8-tensor")
    case.x, case.scale, case.bias = (one.to(dtype) for one in (case.x, case.scale, case.bias))
    assert case.input_scale is not None
    case.input_scale = case.input_scale.to(dtype)
    found = case.run()
    case.scale, case.bias = case.scale.float(), case.bias.float()
    codes = (case.x / case.input_scale).clamp(-128, 127).round()
    case.x, case.input_scale = codes.float() * case.input_scale.float(), case.input_scale.float()
    assert torch.equal(found, case.exact().to(dtype))


@needs_extension
@pytest.mark.parametrize("shape", [one for one in SHAPES if len(one[3]) == 2], ids=str)
@every_activation
@every_isa
def test_images_with_channels_last_give_the_same_in_that_order(
    shape: tuple[Any, ...], activation: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    case = Case(shape, activation)
    found = case.run(case.x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(found, case.run())
    assert found.is_contiguous(memory_format=torch.channels_last)


@needs_extension
@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("isa", ["avx2", "best"])
def test_more_outputs_than_caches_keep_are_the_same(
    shape: tuple[Any, ...], isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    case = Case(shape, "int8-token", batch=1)
    wanted = case.exact()
    assert wanted.numel() > 10 << 18
    for order in (torch.contiguous_format, torch.channels_last):
        assert torch.equal(case.run(case.x.contiguous(memory_format=order)), wanted)


@needs_extension
@every_activation
def test_no_other_sample_and_no_thread_changes_a_bit(activation: str) -> None:
    for shape, batch in itertools.product(SHAPES, (3, 7)):
        case = Case(shape, activation, batch=batch)
        alone = torch.cat([case.run(one) for one in case.x.split(1)])
        threads = torch.get_num_threads()
        orders = [torch.contiguous_format, *[torch.channels_last] * (len(shape[3]) == 2)]
        try:
            torch.set_num_threads(3)
            for order in orders:
                assert torch.equal(case.run(case.x.contiguous(memory_format=order)), alone)
        finally:
            torch.set_num_threads(threads)


def test_a_batch_of_no_samples_gives_none() -> None:
    for shape, activation in itertools.product(SHAPES[::4], ACTIVATIONS):
        case = Case(shape, activation)
        assert case.run(case.x[:0]).shape == (0, *case.run().shape[1:])


@needs_extension
def test_values_next_to_the_middle_between_two_codes_are_divided_as_torch_divides() -> None:
    case = Case((1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1), (1, 1)), "int8-tensor")
    assert case.input_scale is not None
    for scale in (0.021, 0.1, 1 / 3, 7e-5):
        case.input_scale = torch.tensor([scale])
        middles = (torch.arange(-130, 130) + 0.5) * case.input_scale
        near = [middles]
        for towards in (-math.inf, math.inf):
            near += [torch.nextafter(near[-1], torch.tensor(towards)) for _ in range(3)]
        case.x = torch.cat(near).view(1, 1, 1, -1)
        assert torch.equal(case.run(), case.exact())


@needs_extension
@every_isa
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_so_are_those_of_depthwise_convolutions_under_ranges_of_their_own(
    isa: str, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    case = Case((33, 33, 33, (1, 1), (1, 1), (0, 0), (1, 1), (1, 1)), "int8-token", batch=1)
    for scale in (0.021, 0.1, 1 / 3, 7e-5, 1e-38, 3e-43):
        middles = (torch.arange(-127, 127) + 0.5) * scale
        near = [middles]
        for towards in (-math.inf, math.inf):
            near += [torch.nextafter(near[-1], torch.tensor(towards)) for _ in range(3)]
        row = torch.cat([*near, torch.tensor([127.5 * scale])]).clamp(-127.5 * scale, 127.5 * scale)
        case.x = row.expand(1, 33, 1, -1).contiguous(memory_format=order)
        assert torch.equal(case.run(), case.exact())


@needs_extension
@every_isa
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_what_is_no_number_makes_its_sample_none(
    isa: str, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    for shape in (one for one in SHAPES if len(one[3]) == 2 and (one[2] == one[0] or one is SHAPES[0])):
        for activation in ("", "int8-token", "int8-tensor"):
            case = Case(shape, activation)
            case.x = case.x.contiguous(memory_format=order)
            whole = case.run()
            case.x[1, -1, -3, 3] = math.nan  # not in what is rounded first
            found = case.run()
            assert found[1].isnan().all() and torch.equal(found[0], whole[0])
        case.x[1, -1, -3, 3] = math.inf  # is clipped by a static range
        assert case.run().isfinite().all()


@needs_extension
@every_shape
@every_isa
def test_outputs_are_kept_within_bounds(shape: tuple[Any, ...], isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_isa(isa, monkeypatch)
    orders = [torch.contiguous_format, *[torch.channels_last] * (len(shape[3]) == 2)]
    for activation, order, dtype in itertools.product(("", "shifted"), orders, (torch.float32, torch.bfloat16)):
        case = Case(shape, activation)
        case.x = case.x.to(dtype).contiguous(memory_format=order)
        case.scale, case.bias = case.scale.to(dtype), case.bias.to(dtype)
        if case.input_scale is not None:
            case.input_scale = case.input_scale.to(dtype)
        case.x[1, -1, ..., -1] = math.nan
        whole = case.run()
        for bounds in ((0.0, 6.0), (-1.5, math.inf)):
            assert torch.equal(case.bounded(*bounds).nan_to_num(-9), whole.clamp(*bounds).nan_to_num(-9))


def test_scales_of_groups_are_dequantized() -> None:
    case = Case((16, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (6, 6)), "int8-token", bits=4)
    case.scale = torch.rand(8, 9)
    weight = (case.codes.float() - 8).flatten(1).view(8, 9, 16) * case.scale.unsqueeze(-1)
    codes, scale = case.rounded()
    wanted = F.conv2d(codes * scale, weight.view(8, 16, 3, 3), case.bias, 1, 1)
    torch.testing.assert_close(case.run(group_size=16), wanted, rtol=1e-4, atol=1e-4)


@every_shape
@every_activation
def test_gradients_go_straight_through_the_rounding(shape: tuple[Any, ...], activation: str) -> None:
    case = Case(shape, activation)
    x, bias = case.x.clone().requires_grad_(), case.bias.clone().requires_grad_()
    case.bias = bias
    found = case.run(x)
    grad = torch.randn_like(found)
    found.backward(grad)
    run: Any = {1: F.conv1d, 2: F.conv2d}[len(case.kernel)]
    weight = (case.codes.float() - 128) * case.scale.view(-1, *[1] * (case.codes.ndim - 1))
    other = case.x.clone().requires_grad_()
    run(other, weight, None, case.stride, case.padding, case.dilation, case.groups).backward(grad)
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(bias.grad, grad.transpose(0, 1).flatten(1).sum(1), rtol=1e-4, atol=1e-4)


def test_the_compiler_knows_its_shapes() -> None:
    case = Case(SHAPES[0], "int8-token")
    torch.library.opcheck(
        torch.ops.goldstick.quantized_convolution.default,
        (
            case.x, case.packed, case.scale, None, case.bias, 8, case.columns, "int8-token", 3, 1,
            [3, 3], [2, 2], [1, 1], [1, 1],
        ),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


def test_what_does_not_fit_is_refused() -> None:
    case = Case(SHAPES[0], "int8-token")
    with pytest.raises(KernelError, match=r"an input of shape \[2, 4, 13, 17\] is no batch of samples with 3 channels"):
        case.run(torch.randn(2, 4, 13, 17))
    with pytest.raises(KernelError, match="cast one of them"):
        case.run(case.x.double())
    case.activation = "int8-tensor"
    with pytest.raises(KernelError, match="an input scale belongs to 'int8-tensor' and only to it"):
        case.run()
    case.activation = "int4"
    with pytest.raises(KernelError, match="unknown activation 'int4'"):
        case.run()


@needs_extension
@every_shape
def test_a_layer_that_is_laid_out_computes_with_other_instructions(
    shape: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(shape, "int8-tensor")
    layer, weight = case.prepared()
    order = torch.channels_last if case.x.ndim == 4 else torch.contiguous_format
    x = case.x.contiguous(memory_format=order)
    found = layer.run(x, weight)
    assert found is not None
    for isa in ("avx2", "scalar"):
        take_isa(isa, monkeypatch)
        again = layer.run(x, weight)
        assert again is not None and torch.equal(again, found)
