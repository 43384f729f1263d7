"""The compiled range search: the choice of plain torch, inside its buffers, and strict about its arguments."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from goldstick.algorithms import range_error
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.compiled import compiled
from goldstick.core.element import ELEMENTS
from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError
from goldstick.kernels import cpu, ranges_op
from tests.support.guarded import before_a_forbidden_page

if not ranges_op.available and os.environ.get("CI"):
    raise ImportError("the compiled module has no search_ranges")  # continuous integration has built it
if not ranges_op.available:
    pytest.skip("the compiled module has no search_ranges", allow_module_level=True)

Problem = tuple[Tensor, Tensor, Tensor | None, Tensor | None, int]
every_isa = pytest.mark.parametrize("isa", ["scalar", ""], ids=["scalar", "best"])
weighted_or_not = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])


def problem(
    rows: int, groups: int, width: int, *, bits: int = 4, asymmetric: bool = True, weighted: bool = True
) -> Problem:
    """Whole numbers bring ties between codes, two equal candidates a tie between ranges; zeros may be fractions."""
    values = torch.randn(rows, groups, width) * 3
    values[..., ::3] = values[..., ::3].round()
    scale = torch.rand(rows, groups, 9) * 8 / 2**bits + 0.01
    scale[..., 4] = 1
    scale[..., 6] = scale[..., 5]
    zero = torch.rand(rows, groups, 9) * (2**bits - 1) if asymmetric else None
    if zero is not None:
        zero[..., :7] = zero[..., :7].round()
        zero[..., 6] = zero[..., 5]
    importance = torch.rand(groups, width).square() if weighted else None
    if importance is not None:
        importance[..., ::5] = 0
    return values, scale, zero, importance, bits


def choose_plainly(values: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, bits: int) -> Tensor:
    """The choice of plain torch, from the errors of all candidates."""
    grid = Grid(bits=bits, symmetric=zero is None)
    errors = [
        range_error.rounding_error(values, scale[..., c], None if zero is None else zero[..., c], importance, grid)
        for c in range(scale.shape[-1])
    ]
    stacked = torch.stack(errors, -1)
    places = torch.arange(scale.shape[-1]).expand(stacked.shape)
    return torch.where(stacked == stacked.amin(-1, keepdim=True), places, scale.shape[-1]).amin(-1)


@every_isa
@weighted_or_not
@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
def test_the_choice_equals_that_of_plain_torch(
    isa: str, asymmetric: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    for bits in range(1, 9):
        for rows, groups, width in [(1, 1, 1), (5, 3, 7), (9, 2, 32), (4, 1, 100), (3, 2, 128), (0, 2, 4)]:
            arguments = problem(rows, groups, width, bits=bits, asymmetric=asymmetric, weighted=weighted)
            found = torch.ops.goldstick.search_ranges(*arguments)
            assert torch.equal(found, choose_plainly(*arguments))


@every_isa
@weighted_or_not
def test_candidates_a_bit_apart_are_told_apart_alike(isa: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors so near each other that summing in another order, or rounding a term otherwise, changes the choice."""
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    values, scale, _, importance, bits = problem(200, 2, 100, asymmetric=False, weighted=weighted)
    near = (scale[..., :1].view(torch.int32) + torch.arange(40, dtype=torch.int32)).view(torch.float32)
    arguments = (values, near, None, importance, bits)
    expected = choose_plainly(*arguments)
    assert len(expected.unique()) > 10
    assert torch.equal(torch.ops.goldstick.search_ranges(*arguments), expected)


@every_isa
@weighted_or_not
@pytest.mark.parametrize("element", ELEMENTS)
def test_the_choice_among_scales_of_float_elements_equals_that_of_plain_torch(
    isa: str, weighted: bool, element: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights on, between and just beside the numbers of the element, far outside and near zero; scales of zero."""
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    kind = ELEMENTS[element]
    grid = Grid(bits=kind.bits, element=element)
    numbers = kind.table()[kind.table().isfinite()].sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = torch.cat([numbers, middles, middles.nextafter(torch.tensor(torch.inf)), torch.tensor([-1e9, 1e9, 1e-9])])
    for rows, groups, width in [(40, 3, 16), (5, 3, 7), (9, 2, 32), (4, 1, 100), (3, 2, 128), (0, 2, 4)]:
        values = near[torch.randint(len(near), (rows, groups, width))]
        scale = 2.0 ** torch.randint(-3, 3, (rows, groups, 9)).float() * (1 + 0.01 * torch.randn(rows, groups, 9))
        scale[..., 2], scale[..., 4] = 1, 2.0
        scale[..., 6] = 0
        importance = torch.rand(groups, width).square() if weighted else None
        errors = [range_error.rounding_error(values, scale[..., c], None, importance, grid) for c in range(9)]
        found = torch.ops.goldstick.search_ranges(values, scale, None, importance, kind.bits, element)
        assert torch.equal(found, torch.stack(errors, -1).argmin(-1))


@pytest.mark.parametrize("scheme", ["nvfp4a16", "mxfp4a16", "mxfp6a16", "nf4a16", "iq4a16", "fp8a16", "fp8a16-block"])
def test_searches_among_scales_of_float_elements_use_it(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, grid, importance = torch.randn(140, 192) * 0.02, Scheme.parse(scheme).weight, torch.rand(192)
    fused = quantize_with_search(weight, grid, "imatrix", importance)
    monkeypatch.setattr(range_error, "compiled", lambda name, device: None)
    plain = quantize_with_search(weight, grid, "imatrix", importance)
    assert torch.equal(fused.codes, plain.codes) and torch.equal(fused.scale, plain.scale)


def test_the_first_of_equal_candidates_is_chosen() -> None:
    values, scale, zero, importance, bits = problem(50, 2, 40)
    assert zero is not None
    twice = (values, scale.repeat(1, 1, 3), zero.repeat(1, 1, 3), importance, bits)
    assert torch.equal(
        torch.ops.goldstick.search_ranges(*twice),
        torch.ops.goldstick.search_ranges(values, scale, zero, importance, bits),
    )


def test_threads_and_strides_do_not_show() -> None:
    values, scale, zero, importance, bits = problem(300, 2, 40)
    expected = choose_plainly(values, scale, zero, importance, bits)
    wide = torch.zeros(300, 2, 50)
    wide[..., 5:45] = values
    assert torch.equal(torch.ops.goldstick.search_ranges(wide[..., 5:45], scale, zero, importance, bits), expected)
    for threads in (1, 2, 3):
        best = torch.empty_like(expected)
        cpu._C.search_ranges(values, scale, zero, importance, best, bits, threads)
        assert torch.equal(best, expected)


@pytest.mark.parametrize("search", ["mse", "imatrix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_searches_use_it_and_find_the_same_ranges(
    search: RangeSearch, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled("search_ranges", torch.device("cpu")) is not None
    assert compiled("search_ranges", torch.device("meta")) is None
    importance = torch.rand(192) if search == "imatrix" else None
    for bits, size in ((2, 16), (3, 48), (4, None)):
        weight = torch.randn(40, 192).to(dtype)
        grid = Grid(bits=bits, symmetric=bits == 3, granularity="group" if size else "channel", group_size=size)
        with monkeypatch.context() as patch:
            fused = quantize_with_search(weight, grid, search, importance)
            patch.setattr(range_error, "compiled", lambda name, device: None)
            plain = quantize_with_search(weight, grid, search, importance)
        assert torch.equal(fused.codes, plain.codes)
        assert torch.equal(fused.scale, plain.scale)
        assert fused.zero is None or (plain.zero is not None and torch.equal(fused.zero, plain.zero))


def test_torchs_own_checks_pass() -> None:
    for full in (False, True):
        opcheck(torch.ops.goldstick.search_ranges.default, problem(20, 2, 12, asymmetric=full, weighted=full))
    opcheck(torch.ops.goldstick.search_ranges.default, (*problem(20, 2, 12, asymmetric=False), "e2m1"))


@pytest.mark.parametrize("width", [1, 31, 32, 33])
def test_nothing_past_the_end_of_a_buffer_is_touched(width: int) -> None:
    values, scale, zero, importance, bits = problem(3, 2, width)
    assert zero is not None and importance is not None
    expected = choose_plainly(values, scale, zero, importance, bits)
    guarded = [before_a_forbidden_page(t) for t in (values, scale, zero, importance, torch.zeros_like(expected))]
    cpu._C.search_ranges(*(tensor for tensor, _ in guarded), bits, 1, cpu._C.isa() != "scalar")
    assert torch.equal(guarded[4][0], expected)
    for _, release in guarded:
        release()


def arguments(**changes: Any) -> tuple[Any, ...]:
    given: dict[str, Any] = {
        "values": torch.zeros(4, 2, 6),
        "scale": torch.ones(4, 2, 3),
        "zero": torch.ones(4, 2, 3),
        "importance": torch.ones(2, 6),
        "best": torch.zeros(4, 2, dtype=torch.int64),
        "bits": 4,
    }
    return tuple({**given, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scale": torch.ones(4, 1, 3)}, r"scale has the shape \[4, 1, 3\], expected \[4, 2, 3\]"),
        ({"scale": torch.ones(4, 2, 0)}, "scale holds no candidates"),
        ({"zero": torch.ones(4, 2, 2)}, r"zero has the shape \[4, 2, 2\], expected \[4, 2, 3\]"),
        ({"importance": torch.ones(2, 5)}, r"importance has the shape \[2, 5\], expected \[2, 6\]"),
        ({"best": torch.zeros(5, 2, dtype=torch.int64)}, r"best has the shape \[5, 2\], expected \[4, 2\]"),
        ({"bits": 0}, "bits is 0"),
    ],
)
def test_the_extension_itself_refuses_wrong_shapes(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cpu._C.search_ranges(*arguments(**changes))


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ({"table": torch.ones(16)}, "a table has edges"),
        ({"table": torch.ones(8), "edges": torch.ones(15)}, r"table has the shape \[8\], expected \[16\]"),
        ({"largest": 6.0, "mantissa_bits": 40, "least_normal": 1.0}, "bits of mantissa"),
        ({"largest": 6.0, "mantissa_bits": 1, "least_normal": 1.0}, "integers alone have zeros"),
    ],
)
def test_the_extension_itself_refuses_numbers_that_are_none(numbers: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cpu._C.search_ranges(*arguments(), **numbers)


@pytest.mark.parametrize("name", ["values", "scale", "zero", "importance", "best"])
def test_nothing_is_converted_behind_the_callers_back(name: str) -> None:
    cpu._C.search_ranges(*arguments())
    with pytest.raises(TypeError):
        cpu._C.search_ranges(*arguments(**{name: torch.zeros(4, 2, 3, dtype=torch.float64)}))


def test_other_types_are_refused() -> None:
    values, scale, zero, importance, bits = problem(4, 2, 6)
    with pytest.raises(KernelError, match=r"weights in torch\.float64 and scales in torch\.float32"):
        torch.ops.goldstick.search_ranges(values.double(), scale, zero, importance, bits)
