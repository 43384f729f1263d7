"""The kernels of float elements against the reference and a sum in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.bitpack import pack_rows
from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.scheme import NUMBER_FORMATS, Scheme
from goldstick.errors import KernelError
from goldstick.kernels import select
from goldstick.kernels.base import WeightSpec
from goldstick.kernels.cpu import missing_extension
from goldstick.kernels.cpu.float_codes import FloatCodesCpuBackend
from goldstick.kernels.reference import ReferenceBackend
from goldstick.nn.linear import QuantizedLinear
from tests.support.instructions import AVAILABLE, every_isa

pytestmark = pytest.mark.skipif(missing_extension() is not None, reason="the compiled kernels are not built")
FLOATS = [name for name in NUMBER_FORMATS if not Scheme.parse(name).weight.integers]


def spec_of(element: str, rows: int, columns: int, group_size: int, dtype: torch.dtype, scaled: bool) -> WeightSpec:
    return WeightSpec(
        bits=ELEMENTS[element].bits, group_size=group_size, in_features=columns, out_features=rows, has_zero=False,
        dtype=dtype, element=element, tensor_scaled=scaled,
    )  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 70),
    group_size=st.integers(1, 40),
    tokens=st.integers(0, 11),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    scaled=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_weights_are_the_reference_s_and_products_those_of_the_weights(
    element: str, rows: int, columns: int, group_size: int, tokens: int, dtype: torch.dtype, scaled: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    spec = spec_of(element, rows, columns, min(group_size, columns), dtype, scaled)
    real = ELEMENTS[element].table().isfinite().nonzero().flatten().to(torch.uint8)
    codes = real[torch.randint(0, len(real), (rows, columns), generator=random)]
    if element == "e5m2":
        codes = codes & 0x9F | 0x20  # within reach of float16
    packed = pack_rows(codes, spec.bits)
    scale = (torch.rand(rows, spec.groups, generator=random) + 0.1).to(dtype)
    divisor = torch.tensor([[3.7]]) if scaled else None
    weight = ReferenceBackend().dequantize(packed, scale, None, spec, divisor)
    fast = FloatCodesCpuBackend()
    assert torch.equal(fast.dequantize(packed, scale, None, spec, divisor), weight)
    x = torch.randn(tokens, columns, generator=random).to(dtype)
    bias = torch.randn(rows, generator=random).to(dtype)
    found = fast.linear(x, packed, scale, None, bias, spec, global_scale=divisor)
    steps = scale.double() if divisor is None else (scale.float() / divisor).double()
    exact = ELEMENTS[element].numbers(codes).double() * steps[:, torch.arange(columns) // spec.group_size]
    wanted = x.double() @ exact.T + bias.double()
    size = (x.double().abs() @ exact.abs().T + bias.double().abs()).clamp(min=1e-30)
    assert bool(((found.double() - wanted).abs() <= 4 * torch.finfo(dtype).eps * size).all())


@pytest.mark.parametrize("name", ["nvfp4a16", "mxfp4a16", "fp8a16", "fp8a16-block", "mxfp6a16", "nf4a16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_token_gives_the_same_beside_others(name: str, threads: int) -> None:
    scheme = Scheme.parse(name)
    layer = QuantizedLinear(quantize_with_search(torch.randn(300, 256), scheme.weight, "minmax"), scheme)
    x = torch.randn(8, 256)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = layer(x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(layer(x[token]), together[token]) for token in range(8))


@pytest.mark.parametrize("name", FLOATS)
def test_every_number_format_has_a_kernel(name: str) -> None:
    scheme = Scheme.parse(name)
    grid = scheme.weight
    spec = WeightSpec(
        bits=grid.bits, group_size=grid.group_width(256), in_features=256, out_features=8, has_zero=False,
        dtype=torch.bfloat16, activation=scheme.activation.input_name if scheme.activation else None,
        element=grid.element, tensor_scaled=grid.tensor_scaled,
    )  # fmt: skip
    whole = ELEMENTS[grid.element].integers() is not None if grid.element != INTEGER else True
    assert select(spec, torch.device("cpu")).name == ("cpu-integer" if whole else "cpu-float")


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30))


@pytest.mark.parametrize("element", ELEMENTS)
def test_the_sums_are_the_same_with_any_instructions(element: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, sizes = FloatCodesCpuBackend(), [(320, 32), (203, 203), (192, 64), (100, 16), (90, 25)]
    for columns, group_size in sizes:
        spec = spec_of(element, 11, columns, group_size, torch.float32, False)
        codes = torch.randint(0, 1 << spec.bits, (11, columns), dtype=torch.uint8)
        if spec.bits == 8:
            codes[:9] &= 0xBF  # only the last rows may have codes that are no number
        weight = pack_rows(codes, spec.bits), torch.rand(11, spec.groups), None
        x = torch.randn(7, columns) * torch.logspace(-30, 20, 7)[:, None]
        expected = ReferenceBackend().linear(x, *weight, None, spec)
        found = {}
        for isa in AVAILABLE:
            monkeypatch.setenv("GOLDSTICK_ISA", isa)
            found[isa] = ours.linear(x, *weight, None, spec), ours.dequantize(*weight, spec)
            assert same(ours.linear(x[2], *weight, None, spec), found[isa][0][2])
        assert all(
            same(one, other) for isa in AVAILABLE for one, other in zip(found[isa], found["scalar"], strict=True)
        )
        assert same(found["scalar"][1], ReferenceBackend().dequantize(*weight, spec))
        assert torch.equal(found["scalar"][0].isfinite(), expected.isfinite())


@every_isa
def test_fp8_codes_that_are_no_number_make_what_they_touch_none(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    for element, code, number in (("e4m3", 0xFF, torch.nan), ("e4m3", 0x7F, torch.nan), ("e5m2", 0x7C, torch.inf)):
        spec = spec_of(element, 3, 128, 128, torch.float32, False)
        codes = torch.full((3, 128), 0x30, dtype=torch.uint8)
        codes[1, 77] = code
        y = FloatCodesCpuBackend().linear(torch.ones(1, 128), pack_rows(codes, 8), torch.ones(3, 1), None, None, spec)
        assert same(y[0], torch.where(torch.tensor([False, True, False]), number, y[0, 0]))


def test_an_input_that_is_no_number_or_infinite_stays_so() -> None:
    spec = spec_of("e4m3", 3, 128, 64, torch.float32, False)
    weight = pack_rows(torch.full((3, 128), 0x30, dtype=torch.uint8), 8), torch.ones(3, 2), None, None, spec
    x = torch.ones(3, 128)
    x[0, 3], x[1, 3] = torch.nan, torch.inf
    y = FloatCodesCpuBackend().linear(x, *weight)
    assert bool(y[0].isnan().all()) and bool((y[1] == torch.inf).all()) and torch.equal(y[2], y[2, :1].expand(3))


def test_a_spec_whose_element_has_other_bits_is_refused() -> None:
    with pytest.raises(KernelError, match="a code of 8 bits is no 'e2m1'"):
        spec = spec_of("e2m1", 1, 8, 8, torch.float32, False)
        WeightSpec(**{**vars(spec), "bits": 8, "element": "e2m1"})
