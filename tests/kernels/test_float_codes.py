"""The kernels of float elements against the reference and a sum in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.bitpack import pack_rows
from goldstick.core.element import ELEMENTS
from goldstick.core.grid import FLOAT8_SCALES, Grid
from goldstick.core.scheme import NUMBER_FORMATS, Scheme
from goldstick.errors import KernelError
from goldstick.kernels import select
from goldstick.kernels.base import WeightSpec
from goldstick.kernels.cpu import missing_extension
from goldstick.kernels.cpu.float_codes import FloatCodesCpuBackend
from goldstick.kernels.reference import ReferenceBackend
from goldstick.nn.linear import QuantizedLinear

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
    assert select(spec, torch.device("cpu")).name == "cpu-float"


def test_without_vectors_the_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Scheme(weight=Grid(element="e2m1", bits=4, granularity="group", group_size=16, scale=FLOAT8_SCALES))
    for weight in (scheme.weight, Scheme.parse("fp8a16").weight):
        layer = QuantizedLinear(quantize_with_search(torch.randn(40, 128), weight, "minmax"), Scheme(weight=weight))
        x = torch.randn(3, 128)
        vectors = layer(x), layer.dequantized()
        monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
        assert torch.equal(layer(x), vectors[0]) and torch.equal(layer.dequantized(), vectors[1])
        monkeypatch.delenv("GOLDSTICK_ISA")


def test_a_spec_whose_element_has_other_bits_is_refused() -> None:
    with pytest.raises(KernelError, match="a code of 8 bits is no 'e2m1'"):
        spec = spec_of("e2m1", 1, 8, 8, torch.float32, False)
        WeightSpec(**{**vars(spec), "bits": 8, "element": "e2m1"})
