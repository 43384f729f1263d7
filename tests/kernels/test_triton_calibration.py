"""The Triton kernels of algorithms: they find what plain torch finds, bit for bit.

They run in Triton's interpreter on the CPU; TRITON_INTERPRET=0 runs the compiled kernels on a GPU instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from goldstick.algorithms import column_loop, range_error
from goldstick.algorithms.gptq import solve_gptq
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.compiled import compiled
from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.grid import Grid
from goldstick.core.notices import SlowKernelsWarning
from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError
from goldstick.kernels import ops, triton
from tests.support.triton_device import device_of_triton

DEVICE = device_of_triton()
INTERPRETED = DEVICE.type == "cpu"


ROOT = Path(__file__).resolve().parent.parent.parent
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def here(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(DEVICE)


def block(rows: int, width: int, groups: int, dtype: torch.dtype, bits: int) -> tuple[Tensor, ...]:
    """Weights far outside the range too, some exactly between two codes, and a scale of 0; groups in any order."""
    weight = torch.randn(rows, width, dtype=torch.float64) * torch.logspace(-2, 1, width, dtype=torch.float64)
    factor = (0.2 * torch.randn(width, width, dtype=torch.float64)).triu(1)
    factor.diagonal().copy_(torch.rand(width, dtype=torch.float64) + 0.1)
    steps = (torch.rand(rows, groups) * 0.1 + 0.01).to(dtype)
    steps[-1:, -1] = 0
    zero = torch.rand(rows, groups) * (2**bits - 1)
    zero[::2] = zero[::2].round()
    weight[:, 0] = 0.5 * steps[:, 0].double()
    group = torch.randint(0, groups, (width,))
    group[:1] = 0
    return weight, factor, steps, zero, group


def assert_solves_as_torch_does(
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
    bits: int,
    element: str = INTEGER,
    dtype: torch.dtype = torch.float32,
    *,
    minimums: bool = False,
) -> None:
    named = str(dtype).removeprefix("torch.")
    expected = column_loop.solve_block(*operands, bits, element, named, minimums)
    codes, errors = triton.gptq_block(*map(here, operands), bits, element, named, minimums)  # type: ignore[arg-type]
    assert torch.equal(codes.cpu(), expected[0])
    assert torch.equal(errors.cpu(), expected[1])


@every_dtype
def test_columns_of_integers(dtype: torch.dtype) -> None:
    for bits, rows, width, groups in [(1, 1, 1, 1), (2, 17, 7, 2), (3, 0, 5, 1), (4, 33, 40, 3), (8, 5, 128, 2)]:
        weight, factor, steps, zero, group = block(rows, width, groups, dtype, bits)
        for middle in (None, zero):
            assert_solves_as_torch_does((weight, factor, steps, middle, group), bits, dtype=dtype)


@pytest.mark.parametrize("name", ELEMENTS)
def test_columns_of_tables(name: str) -> None:
    element = ELEMENTS[name]
    weight, factor, steps, _, group = block(9, 12, 2, torch.float32, element.bits)
    weight[:, 1] = -0.0
    for dtype in (torch.float32, torch.bfloat16):
        assert_solves_as_torch_does((weight, factor, steps, None, group), element.bits, name, dtype)


def test_columns_above_minimums() -> None:
    weight, factor, steps, zero, group = block(9, 32, 2, torch.float32, 4)
    assert_solves_as_torch_does((weight, factor, steps, zero, group), 4, minimums=True)


def candidates(rows: int, groups: int, width: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whole numbers bring ties between codes, two equal candidates a tie between ranges; zeros may be fractions."""
    values = torch.randn(rows, groups, width) * 3
    values[..., ::3] = values[..., ::3].round()
    scale = torch.rand(rows, groups, 19) * 8 / 2**bits + 0.01
    scale[..., 4], scale[..., 7], scale[..., 18] = 1, 0, scale[..., 17]
    zero = torch.rand(rows, groups, 19) * (2**bits - 1)
    zero[..., :15] = zero[..., :15].round()
    zero[..., 18] = zero[..., 17]
    importance = torch.rand(groups, width).square()
    importance[..., ::5] = 0
    return values, scale, zero, importance


def assert_chooses_as_torch_does(
    values: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, grid: Grid
) -> Tensor:
    errors = [
        range_error.rounding_error(values, scale[..., c], None if zero is None else zero[..., c], importance, grid)
        for c in range(scale.shape[-1])
    ]
    least = torch.stack(errors, -1).amin(-1, keepdim=True)
    first = (torch.stack(errors, -1) == least).int().argmax(-1)
    operands = map(here, (values, scale, zero, importance))
    element = "" if grid.integers else grid.element
    found = triton.search_ranges(*operands, grid.bits, element).cpu()  # type: ignore[arg-type]
    assert torch.equal(found, first)
    return found


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_ranges_of_integers(bits: int) -> None:
    for rows, groups, width in [(1, 1, 1), (3, 2, 7), (2, 2, 32), (2, 1, 100), (0, 2, 4)]:
        values, scale, zero, importance = candidates(rows, groups, width, bits)
        assert_chooses_as_torch_does(values, scale, None, importance, Grid(bits=bits))
        assert_chooses_as_torch_does(values, scale, zero, None, Grid(bits=bits, symmetric=False))


@pytest.mark.parametrize("name", [name for name, element in ELEMENTS.items() if element.bits == 4])
def test_ranges_of_tables(name: str) -> None:
    values, scale, _, importance = candidates(3, 2, 20, 4)
    assert_chooses_as_torch_does(values, scale, None, importance, Grid(bits=4, element=name))


def test_ranges_a_bit_apart_are_told_apart() -> None:
    """Errors so near each other that summing in another order, or rounding a term otherwise, changes the choice."""
    values, scale, _, importance = candidates(20, 2, 100, 4)
    near = (scale[..., :1].view(torch.int32) + torch.arange(40, dtype=torch.int32)).view(torch.float32)
    assert len(assert_chooses_as_torch_does(values, near, None, importance, Grid(bits=4)).unique()) > 5


def test_what_is_no_number_is_never_chosen() -> None:
    values, scale = torch.randn(2, 1, 8), torch.rand(2, 1, 3) + 0.1
    scale[..., 0] = torch.nan
    assert bool((triton.search_ranges(*map(here, (values, scale)), None, None, 4) > 0).all())  # type: ignore[arg-type]
    scale[:] = torch.nan
    assert not triton.search_ranges(*map(here, (values, scale)), None, None, 4).any()  # type: ignore[arg-type]


def test_operands_on_two_devices_and_of_other_dtypes_are_refused() -> None:
    weight, factor, steps, zero, group = block(2, 3, 1, torch.float32, 4)
    with pytest.raises(KernelError, match="lie on cpu and meta: move them to one device"):
        triton.gptq_block(weight, factor, steps.to("meta"), zero, group, 4)
    values, scale, _, importance = candidates(2, 1, 3, 4)
    with pytest.raises(KernelError, match="lie on cpu and meta: move them to one device"):
        triton.search_ranges(values, scale, None, importance.to("meta"), 4)
    with pytest.raises(KernelError, match=r"not weights in torch.float64 and scales in torch.float32"):
        triton.search_ranges(values.double(), scale, None, importance, 4)


@pytest.mark.skipif(INTERPRETED, reason="on the CPU algorithms have their operators in C++")
@pytest.mark.parametrize("name", ["w4a16-g32", "w3a16-g32-asym", "nvfp4a16", "mxfp4a16", "fp8a16", "q4_k", "w8a16"])
def test_algorithms_use_them_on_a_gpu_and_find_the_codes_of_plain_torch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ops is not None  # whose import declares them
    assert compiled("gptq_block", DEVICE) is not None and compiled("search_ranges", DEVICE) is not None
    weight = torch.randn(40, 256, device=DEVICE)
    x = torch.randn(400, 256, dtype=torch.float64, device=DEVICE)
    grid = Scheme.parse(name).weight
    found = solve_gptq(weight, x.T @ x, grid).tensor, quantize_with_search(weight, grid, "mse")
    for module in (column_loop, range_error):
        monkeypatch.setattr(module, "compiled", lambda name, device: None)
    plain = solve_gptq(weight, x.T @ x, grid).tensor, quantize_with_search(weight, grid, "mse")
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one.codes, other.codes) and torch.equal(one.scale, other.scale)


@pytest.mark.skipif(not INTERPRETED, reason="what pretends to compile nothing is the interpreter")
def test_where_nothing_compiles_algorithms_keep_to_plain_torch_and_a_warning_says_why() -> None:
    """As without a C compiler. The device is the processor, which Triton interprets."""
    script = """
import warnings, torch
from goldstick.core.compiled import compiled
from goldstick.core.notices import SlowKernelsWarning
from goldstick.kernels import ops, triton
triton._why_not_on_cuda = lambda device: None
def broken(*arguments, **options):
    raise RuntimeError("Failed to find C compiler.")
working, triton.gptq_block = triton.gptq_block, broken
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not triton.compiles_for(torch.device("cpu")) and not triton.compiles_for(torch.device("cpu"))
(warning,) = caught
assert warning.category is SlowKernelsWarning
print(warning.message)
triton._why_not_compiled.cache_clear()
triton.gptq_block = working
assert triton.compiles_for(torch.device("cpu"))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    expected = "Triton compiles nothing here (RuntimeError: Failed to find C compiler.). Calibration on this GPU takes"
    assert found.stdout.startswith(expected)
    assert issubclass(SlowKernelsWarning, RuntimeWarning)
