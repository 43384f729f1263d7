"""Hadamard transforms of inputs: the compiled kernel gives the bits of their definition, with any instructions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.core.input_rotation import hadamard_transform, plain_transform
from goldstick.kernels import cpu, hadamard_op
from goldstick.kernels.hadamard_op import hadamard
from tests.support.instructions import AVAILABLE, every_isa

pytestmark = pytest.mark.skipif(not hadamard_op.available, reason="the compiled kernels are not built")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """Equal to the bit, zeros' signs included; what is no number is none in both."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan())
    stored = torch.int32 if found.dtype == torch.float32 else torch.int16
    numbers = ~expected.isnan()
    assert torch.equal(found.view(stored)[numbers], expected.view(stored)[numbers])


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of many sizes, with both zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp(4 * torch.randn(shape, generator=generator))
    x[..., 0], x[..., 1] = 0.0, -0.0
    return x.to(dtype)


@every_isa
@every_dtype
@pytest.mark.parametrize("size", [1 << exponent for exponent in range(3, 16)])
def test_every_size_gives_the_bits_of_the_definition(
    isa: str, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    x = numbers(3, 2 * size, dtype=dtype)
    assert_same_bits(hadamard(x, size), plain_transform(x, size))


@given(
    seed=st.integers(0, 1000),
    exponent=st.integers(0, 10),
    blocks=st.integers(1, 5),
    tokens=st.integers(0, 4),
    dtype=st.sampled_from(DTYPES),
    isa=st.sampled_from(AVAILABLE),
)
def test_any_number_of_tokens_and_blocks_gives_the_bits_of_the_definition(
    seed: int, exponent: int, blocks: int, tokens: int, dtype: torch.dtype, isa: str
) -> None:
    size = 1 << exponent
    x = numbers(tokens, max(2, blocks * size), dtype=dtype, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_ISA", isa)
        assert_same_bits(hadamard(x, size), plain_transform(x, size))


@every_isa
@every_dtype
def test_infinities_and_what_is_no_number_stay_so(
    isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    x = numbers(4, 64, dtype=dtype)
    x[0, 5], x[1, 6], x[2, 3:5], x[3] = torch.inf, torch.nan, torch.inf, torch.finfo(dtype).max
    assert_same_bits(hadamard(x, 64), plain_transform(x, 64))


def test_threads_change_no_bit() -> None:
    x, y = numbers(1, 5 * 64, dtype=torch.float32), torch.empty(5 * 64)
    for threads in (1, 2, 3, 9):
        cpu._C.hadamard(x.data_ptr(), y.zero_().data_ptr(), 5, 64, "float32", threads)
        assert_same_bits(y[None], plain_transform(x, 64))


def test_inputs_that_are_not_dense_are_turned_alike() -> None:
    x = numbers(64, 6, 2, dtype=torch.float32).permute(1, 2, 0)
    assert_same_bits(hadamard(x, 16), plain_transform(x, 16))
    assert hadamard(x, 16).is_contiguous()


def test_float64_is_turned_in_float64() -> None:
    x = torch.randn(3, 64, dtype=torch.float64)
    assert torch.equal(hadamard(x, 32), plain_transform(x, 32))
    assert torch.equal(hadamard_transform(x, 32), plain_transform(x, 32))


def test_gradients_are_turned_as_inputs_are() -> None:
    x, gradient = torch.randn(2, 3, 32, requires_grad=True), torch.randn(2, 3, 32)
    hadamard(x, 16).backward(gradient)
    assert x.grad is not None and torch.equal(x.grad, plain_transform(gradient, 16))


def test_the_operator_can_be_traced_and_compiled() -> None:
    torch.library.opcheck(torch.ops.goldstick.hadamard.default, (torch.randn(2, 32), 16))
    torch.library.opcheck(torch.ops.goldstick.hadamard.default, (torch.randn(2, 32, requires_grad=True), 16))


@pytest.mark.parametrize("size", [4, 12, 1 << 16])
def test_the_kernel_refuses_sizes_that_it_has_not(size: int) -> None:
    with pytest.raises(ValueError, match="expected a power of two from 8 to 32768"):
        cpu._C.hadamard(0, 0, 0, size, "float32", 1)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for x, size in ((torch.zeros(2, 24), 16), (torch.zeros(2, 24), 0), (torch.tensor(1.0), 1)):
        with pytest.raises(ValueError, match="cannot be turned in blocks"):
            hadamard(x, size)
