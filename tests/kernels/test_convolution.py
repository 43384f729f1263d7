"""Convolutions on codes against slow exact integers, and against what rounding and dequantizing gives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the operators)
from goldstick.kernels.convolution import Geometry
from goldstick.kernels.prepared_convolution import PreparedConvolution

needs_extension = pytest.mark.skipif(cpu.missing_extension() is not None, reason="no compiled kernels")

#: in, out, groups, kernel, stride, padding, dilation, sides
SHAPES: list[tuple[Any, ...]] = [
    (3, 16, 1, (3, 3), (2, 2), (1, 1), (1, 1), (13, 17)),
    (5, 17, 1, (1, 1), (1, 1), (0, 0), (1, 1), (7, 70)),
    (16, 33, 1, (3, 2), (1, 2), (2, 0), (2, 3), (12, 9)),
    (64, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (5, 5)),
    (70, 40, 1, (3, 3), (1, 1), (1, 1), (1, 1), (14, 14)),
    (12, 6, 3, (3, 3), (1, 1), (1, 1), (1, 1), (6, 8)),
    (10, 40, 5, (2, 2), (2, 1), (0, 1), (1, 1), (9, 9)),
    (6, 6, 6, (3, 3), (1, 1), (1, 1), (1, 1), (7, 7)),
    (6, 6, 6, (3, 3), (2, 2), (1, 1), (1, 1), (112, 90)),
    (70, 70, 70, (3, 3), (1, 1), (1, 1), (1, 1), (9, 5)),
    (37, 37, 37, (3, 3), (2, 2), (1, 1), (1, 1), (10, 9)),
    (36, 36, 36, (2, 5), (1, 3), (1, 2), (3, 1), (8, 12)),
    (4, 12, 4, (5, 5), (1, 1), (2, 2), (1, 1), (66, 70)),
    (3, 3, 3, (3, 3), (3, 3), (0, 0), (2, 2), (20, 20)),
    (8, 24, 1, (5,), (2,), (2,), (1,), (31,)),
    (8, 8, 8, (4,), (1,), (3,), (1,), (40,)),
    (9, 2, 1, (1,), (1,), (0,), (1,), (1,)),
    (64, 3, 1, (1, 1), (1, 1), (0, 0), (1, 1), (60, 60)),
    (32, 96, 2, (3, 3), (1, 1), (1, 1), (1, 1), (9, 9)),
    (7, 20, 1, (3, 5), (2, 1), (1, 2), (1, 1), (11, 40)),
]
#: More outputs than caches keep, and lines of which begin where memory's do or not.
LARGE: list[tuple[Any, ...]] = [
    (6, 48, 1, (1, 1), (1, 1), (0, 0), (1, 1), (200, 292)),
    (6, 40, 1, (1, 1), (1, 1), (0, 0), (1, 1), (251, 263)),
    (64, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (208, 205)),
    (40, 40, 40, (3, 3), (1, 1), (1, 1), (1, 1), (263, 251)),
]
ACTIVATIONS = ("", "int8-token", "int8-tensor", "shifted")


def take_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with those instructions, where they are here."""
    if isa == "avx2" and cpu.chosen_isa() == "scalar":
        pytest.skip("no AVX2 here")
    if isa != "best":
        monkeypatch.setenv("GOLDSTICK_ISA", isa)


every_isa = pytest.mark.parametrize("isa", ["scalar", "avx2", "best"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


class Case:
    """A convolution with random codes."""

    def __init__(self, shape: tuple[Any, ...], activation: str, *, bits: int = 8, batch: int = 2) -> None:
        torch.manual_seed(0)
        self.channels, self.out, self.groups, self.kernel, *sizes, sides = shape
        self.stride, self.padding, self.dilation = sizes
        self.activation = "int8-tensor" if activation == "shifted" else activation
        self.codes = torch.randint(1 << bits, (self.out, self.channels // self.groups, *self.kernel), dtype=torch.uint8)
        self.bits, self.columns = bits, self.codes[0].numel()
        self.packed = pack_rows(self.codes.flatten(1), bits)
        self.scale, self.bias = torch.rand(self.out, 1) + 0.1, torch.randn(self.out)
        self.x = torch.randn(batch, self.channels, *sides)
        static = self.activation == "int8-tensor"
        self.input_scale = torch.tensor([0.021]) if static else None
        self.input_zero = torch.tensor([-37], dtype=torch.int8) if activation == "shifted" else None

    def run(self, x: Tensor | None = None, group_size: int | None = None) -> Tensor:
        found: Tensor = torch.ops.goldstick.quantized_convolution(
            self.x if x is None else x, self.packed, self.scale, None, self.bias, self.bits, group_size or self.columns,
            self.activation, self.channels, self.groups, self.kernel, self.stride, self.padding, self.dilation,
            self.input_scale, self.input_zero,
        )  # fmt: skip
        return found

    def bounded(self, least: float, most: float) -> Tensor:
        geometry = Geometry(
            in_channels=self.channels, groups=self.groups, kernel=self.kernel, stride=self.stride,
            padding=self.padding, dilation=self.dilation,
        )  # fmt: skip
        prepared = PreparedConvolution(self.bits, self.columns, self.activation, geometry)
        weight = self.packed, self.scale, None, self.bias, self.input_scale, self.input_zero
        found = prepared.run(self.x, weight, (least, most))
        assert found is not None
        return found

    def rounded(self) -> tuple[Tensor, Tensor]:
        """The codes of the input less its zero, and a scale for each sample."""
        broadcast = (-1, *[1] * (self.x.ndim - 1))
        if self.input_scale is not None:
            zero = 0 if self.input_zero is None else int(self.input_zero)
            codes = (self.x / self.input_scale + zero).clamp(-128, 127).round() - zero
            return codes, self.input_scale.expand(len(self.x)).view(broadcast)
        largest = self.x.abs().flatten(1).amax(1).view(broadcast)
        if self.activation:
            return (self.x / (largest / 127.5)).clamp(-128, 127).round(), largest / 127.5
        scale = largest / 32639
        return (self.x * (1 / scale)).round(), scale

    def exact(self) -> Tensor:
        """Sums of whole numbers in float64, rounded where the kernels round."""
        codes, scale = self.rounded()
        run: Any = {1: F.conv1d, 2: F.conv2d}[len(self.kernel)]
        weight = self.codes.double() - 2 ** (self.bits - 1)
        sums = run(codes.double(), weight, None, self.stride, self.padding, self.dilation, self.groups)
        by_channel = (1, -1, *[1] * len(self.kernel))
        found: Tensor = sums.float() * (self.scale.view(by_channel) * scale) + self.bias.view(by_channel)
        return found


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
