"""The compiled column loop: equal to plain torch bit for bit, inside its buffers, and strict about its arguments."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from goldstick.algorithms import column_loop
from goldstick.algorithms.gptq import solve_gptq
from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError
from goldstick.kernels import cpu, gptq_op
from tests.support.guarded import before_a_forbidden_page

if not gptq_op.available and os.environ.get("CI"):
    raise ImportError("the compiled module has no gptq_block")  # continuous integration has built it
if not gptq_op.available:
    pytest.skip("the compiled module has no gptq_block", allow_module_level=True)


def problem(
    rows: int, width: int, groups: int, dtype: torch.dtype, *, asymmetric: bool, bits: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, int]:
    """Weights far outside the range too, some exactly between two codes; groups in any order."""
    weight = torch.randn(rows, width, dtype=torch.float64) * torch.logspace(-2, 1, width, dtype=torch.float64)
    factor = (0.2 * torch.randn(width, width, dtype=torch.float64)).triu(1)
    factor.diagonal().copy_(torch.rand(width, dtype=torch.float64) + 0.1)
    scale = (torch.rand(rows, groups) * 0.1 + 0.01).to(dtype)
    zero = torch.rand(rows, groups) * (2**bits - 1) if asymmetric else None
    if zero is not None:
        zero[::2] = zero[::2].round()
    weight[:, 0] = 0.5 * scale[:, 0].double()
    group = torch.randint(0, groups, (width,))
    group[:1] = 0
    return weight, factor, scale, zero, group, bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("isa", ["scalar", ""], ids=["scalar", "best"])
@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
def test_codes_and_errors_equal_those_of_plain_torch(
    dtype: torch.dtype, isa: str, asymmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    for bits in range(1, 9):
        for rows, width, groups in [(1, 1, 1), (15, 7, 2), (16, 128, 1), (67, 33, 4), (0, 5, 1)]:
            arguments = problem(rows, width, groups, dtype, asymmetric=asymmetric, bits=bits)
            codes, errors = torch.ops.goldstick.gptq_block(*arguments)
            expected_codes, expected_errors = column_loop.solve_block(*arguments)
            assert torch.equal(codes, expected_codes)
            assert torch.equal(errors, expected_errors)


@pytest.mark.parametrize("isa", ["scalar", ""], ids=["scalar", "best"])
def test_half_precision_is_rounded_as_torch_rounds(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products from below the smallest subnormal number to beyond the largest."""
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    scale = torch.logspace(-8, 4.8, 4000, dtype=torch.float64).half().unsqueeze(-1)  # some are 0
    weight = torch.randn(4000, 1, dtype=torch.float64) * scale.double() * 60
    arguments = (weight, torch.ones(1, 1, dtype=torch.float64), scale, None, torch.zeros(1, dtype=torch.long), 8)
    found, expected = torch.ops.goldstick.gptq_block(*arguments), column_loop.solve_block(*arguments)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_threads_and_strides_do_not_show() -> None:
    weight, factor, *rest = problem(200, 40, 2, torch.float32, asymmetric=True, bits=4)
    expected = column_loop.solve_block(weight, factor, *rest)
    wide = torch.zeros(200, 50, dtype=torch.float64)
    wide[:, 5:45] = weight
    codes, errors = torch.ops.goldstick.gptq_block(wide[:, 5:45], factor.T.contiguous().T, *rest)
    assert torch.equal(codes, expected[0])
    assert torch.equal(errors, expected[1])
    for threads in (1, 2, 3):
        codes, errors = torch.empty_like(codes), torch.empty_like(errors)
        scale, zero, group, bits = rest
        cpu._C.gptq_block(weight, factor, scale, zero, group, codes, errors, bits, "float32", threads)
        assert torch.equal(codes, expected[0])
        assert torch.equal(errors, expected[1])


def test_the_algorithm_uses_it_and_finds_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert column_loop._fused(torch.device("cpu"), Grid(bits=4)) is not None
    assert column_loop._fused(torch.device("meta"), Grid(bits=4)) is None
    assert column_loop._fused(torch.device("cpu"), Grid(bits=8, element="e4m3")) is None
    x = torch.randn(400, 20, dtype=torch.float64) @ torch.randn(20, 192, dtype=torch.float64)
    x += 0.1 * torch.randn(400, 192, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight, grid = torch.randn(40, 192).to(dtype), Grid(bits=3, symmetric=False, granularity="group", group_size=32)
        with monkeypatch.context() as patch:
            fused = solve_gptq(weight, x.T @ x, grid)
            patch.setattr(column_loop, "_fused", lambda device, grid: None)
            plain = solve_gptq(weight, x.T @ x, grid)
        assert fused.fallback is None
        assert torch.equal(fused.tensor.codes, plain.tensor.codes)
        assert fused.loss == plain.loss


@pytest.mark.parametrize("name", ["mxfp4a16", "nvfp4a16", "nf4a16", "iq4a16", "iq4_xs", "q2_k", "q4_k", "q6_k"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_and_superblocks_have_the_codes_of_plain_torch(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(37, 256, generator=generator).to(dtype)
    x = torch.randn(400, 256, dtype=torch.float64, generator=generator)
    grid = Scheme.parse(name).weight
    fused = solve_gptq(weight, x.T @ x, grid)
    monkeypatch.setattr(column_loop, "_fused", lambda device, grid: None)
    plain = solve_gptq(weight, x.T @ x, grid)
    assert fused.fallback is None
    assert torch.equal(fused.tensor.codes, plain.tensor.codes)
    assert fused.loss == plain.loss


def test_torchs_own_checks_pass() -> None:
    for asymmetric in (False, True):
        opcheck(
            torch.ops.goldstick.gptq_block.default,
            problem(20, 12, 2, torch.bfloat16, asymmetric=asymmetric, bits=4),
        )
    weight, *rest = problem(20, 12, 2, torch.float32, asymmetric=False, bits=4)
    opcheck(torch.ops.goldstick.gptq_block.default, (weight.T.contiguous().T, *rest))


@pytest.mark.parametrize("rows", [1, 16, 19])
def test_nothing_past_the_end_of_a_buffer_is_touched(rows: int) -> None:
    weight, factor, scale, zero, group, bits = problem(rows, 9, 2, torch.float32, asymmetric=True, bits=4)
    expected = column_loop.solve_block(weight, factor, scale, zero, group, bits)
    assert zero is not None
    buffers = [weight, factor, scale, zero, group, torch.zeros_like(expected[0]), torch.zeros_like(expected[1])]
    guarded = [before_a_forbidden_page(buffer) for buffer in buffers]
    cpu._C.gptq_block(*(tensor for tensor, _ in guarded), bits, "float32", 1, cpu._C.isa() != "scalar")
    assert torch.equal(guarded[5][0], expected[0])
    assert torch.equal(guarded[6][0], expected[1])
    for _, release in guarded:
        release()


def arguments(**changes: Any) -> tuple[Any, ...]:
    given: dict[str, Any] = {
        "weight": torch.zeros(4, 6, dtype=torch.float64),
        "factor": torch.eye(6, dtype=torch.float64),
        "scale": torch.ones(4, 2),
        "zero": torch.ones(4, 2),
        "group": torch.zeros(6, dtype=torch.int64),
        "codes": torch.zeros(4, 6, dtype=torch.uint8),
        "errors": torch.zeros(4, 6, dtype=torch.float64),
        "bits": 4,
        "precision": "float32",
    }
    return tuple({**given, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"factor": torch.eye(5, dtype=torch.float64)}, r"factor has the shape \[5, 5\], expected \[6, 6\]"),
        ({"scale": torch.ones(3, 2)}, r"scale has the shape \[3, 2\], expected \[4, 2\]"),
        ({"zero": torch.ones(4, 1)}, r"zero has the shape \[4, 1\], expected \[4, 2\]"),
        ({"group": torch.zeros(5, dtype=torch.int64)}, "group has 5 entries, expected 6"),
        ({"group": torch.full((6,), 2)}, "column 0 is in group 2 of 2"),
        ({"group": torch.full((6,), -1)}, "column 0 is in group -1 of 2"),
        ({"codes": torch.zeros(4, 5, dtype=torch.uint8)}, r"codes has the shape \[4, 5\]"),
        ({"errors": torch.zeros(5, 6, dtype=torch.float64)}, r"errors has the shape \[5, 6\]"),
        ({"bits": 9}, "bits is 9"),
        ({"precision": "float8"}, "precision is 'float8'"),
    ],
)
def test_the_extension_itself_refuses_wrong_shapes(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cpu._C.gptq_block(*arguments(**changes))


@pytest.mark.parametrize("name", ["weight", "factor", "scale", "zero", "group", "codes", "errors"])
def test_nothing_is_converted_behind_the_callers_back(name: str) -> None:
    cpu._C.gptq_block(*arguments())
    with pytest.raises(TypeError):
        cpu._C.gptq_block(*arguments(**{name: torch.zeros(4, 6, dtype=torch.int16)}))


def test_a_scale_of_another_type_is_refused() -> None:
    weight, factor, scale, zero, group, bits = problem(4, 6, 2, torch.float32, asymmetric=False, bits=4)
    with pytest.raises(KernelError, match=r"not torch\.float64"):
        torch.ops.goldstick.gptq_block(weight, factor, scale.double(), zero, group, bits)
