"""Norm and gated activation as one operation each: against plain loops in float64, with the same bits everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels import norm_op as _norm_op  # noqa: F401  (registers goldstick::rms_norm_quantize)
from goldstick.kernels.fused import gated_silu, rms_norm
from tests.support.guarded import before_a_forbidden_page

SHAPES = [(1, 1), (1, 31), (3, 32), (2, 3, 100), (5, 2048), (0, 8)]
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
#: What rounding the result, and one operation before it, costs relative to the largest.
STEP = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@every_shape
@every_dtype
def test_the_norm_is_what_a_loop_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    found = rms_norm(x, weight, 1e-5)
    assert found.shape == x.shape
    assert found.dtype == dtype
    for row, own in zip(x.reshape(-1, shape[-1]).double().tolist(), found.reshape(-1, shape[-1]).tolist(), strict=True):
        root = math.sqrt(sum(value * value for value in row) / len(row) + 1e-5)
        for value, gain, given in zip(row, weight.tolist(), own, strict=True):
            assert given == pytest.approx(value / root * gain, rel=STEP[dtype], abs=1e-30)


@every_shape
@every_dtype
def test_the_gate_is_what_a_loop_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, up = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    found = gated_silu(torch.cat([gate, up], dim=-1))
    assert found.shape == gate.shape
    for a, b, given in zip(gate.flatten().tolist(), up.flatten().tolist(), found.flatten().tolist(), strict=True):
        assert given == pytest.approx(a / (1 + math.exp(-a)) * b, rel=STEP[dtype], abs=1e-30)


def test_the_gate_of_what_is_hardly_a_number_is_torchs() -> None:
    gate = torch.tensor([math.inf, -math.inf, math.nan, 1e30, -1e30, -100.0, 0.0, -0.0, 3e38, -88.0, 88.5])
    expected = torch.nn.functional.silu(gate)
    found = gated_silu(torch.cat([gate, torch.ones(11)]))
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@every_dtype
def test_rows_are_the_same_bits_in_any_batch_with_any_instructions_and_threads(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = random(40, 2050, dtype=dtype), random(2050, dtype=dtype, seed=1)
    norm, gate = rms_norm(x, weight, 1e-6), gated_silu(x)
    assert torch.equal(bits(torch.cat([rms_norm(row, weight, 1e-6) for row in x.split(1)])), bits(norm))
    assert torch.equal(bits(torch.cat([gated_silu(row) for row in x.split(1)])), bits(gate))
    threads = torch.get_num_threads()
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    torch.set_num_threads(3)
    try:
        assert torch.equal(bits(rms_norm(x, weight, 1e-6)), bits(norm))
        assert torch.equal(bits(gated_silu(x)), bits(gate))
    finally:
        torch.set_num_threads(threads)


@every_dtype
def test_rows_need_not_lie_side_by_side(dtype: torch.dtype) -> None:
    x, weight = random(6, 8, dtype=dtype), random(6, dtype=dtype, seed=1)
    assert torch.equal(rms_norm(x.T, weight, 1e-6), rms_norm(x.T.contiguous(), weight, 1e-6))
    assert torch.equal(gated_silu(x.T), gated_silu(x.T.contiguous()))


def test_other_dtypes_take_plain_operations() -> None:
    x, weight = random(3, 8).double(), random(8, seed=1).double()
    assert torch.allclose(rms_norm(x, weight, 1e-6), torch.nn.functional.rms_norm(x, (8,), weight, 1e-6), rtol=1e-5)
    assert torch.allclose(gated_silu(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelError, match="dimension and dtype"):
        rms_norm(random(3, 8), random(7), 1e-6)
    with pytest.raises(KernelError, match="dimension and dtype"):
        rms_norm(random(3, 8), random(8).bfloat16(), 1e-6)
    with pytest.raises(KernelError, match="as many ups"):
        gated_silu(random(3, 7))


def test_the_operators_pass_torchs_checks_and_compile() -> None:
    x, weight = random(3, 8), random(8, seed=1)
    torch.library.opcheck(torch.ops.goldstick.rms_norm.default, (x, weight, 1e-6))
    torch.library.opcheck(torch.ops.goldstick.gated_silu.default, (x,))
    compiled = torch.compile(lambda x: gated_silu(rms_norm(x, weight, 1e-6)), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), gated_silu(rms_norm(x, weight, 1e-6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_results_lie_as_compilers_are_told_whatever_the_inputs_strides(dtype: torch.dtype) -> None:
    x, weight = random(2, 8, 3).to(dtype).transpose(1, 2), random(8, seed=1).to(dtype)
    torch.library.opcheck(torch.ops.goldstick.rms_norm.default, (x, weight, 1e-6))
    torch.library.opcheck(torch.ops.goldstick.gated_silu.default, (x,))
    if dtype != torch.float64:
        torch.library.opcheck(torch.ops.goldstick.rms_norm_quantize.default, (x, weight, 1e-6))


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@pytest.mark.parametrize("isa", ["scalar", ""])
@every_dtype
@pytest.mark.parametrize("columns", [2, 30, 32, 34, 130])
def test_nothing_is_read_behind_the_end(
    columns: int, dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    x, weight = random(3, columns, dtype=dtype), random(columns, dtype=dtype, seed=1)
    (own, release), (gain, release_gain) = before_a_forbidden_page(x), before_a_forbidden_page(weight)
    assert torch.equal(rms_norm(own, gain, 1e-6), rms_norm(x, weight, 1e-6))
    assert torch.equal(gated_silu(own), gated_silu(x))
    release()
    release_gain()
