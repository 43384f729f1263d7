"""Sums of products of whole numbers: the compiled operator against plain integer arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from goldstick.core import products
from goldstick.kernels import cpu, products_op

pytestmark = pytest.mark.skipif(not products_op.available, reason="the compiled kernels are not built")

LARGEST = 2**products.BITS


def numbers(tokens: int, channels: int) -> Tensor:
    """Random ones with many of the largest size."""
    values = torch.randint(-LARGEST, LARGEST + 1, (tokens, channels), dtype=torch.int16)
    return torch.where(torch.rand(tokens, channels) < 0.3, values.sign() * LARGEST, values).to(torch.int16)


def require(isa: str) -> None:
    """Skip what this processor cannot run."""
    names = ["scalar", "avx2", "avx512", "amx"]
    if names.index(isa) > names.index(cpu._C.isa()):
        pytest.skip(f"this processor has no {isa}")


every_isa = pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])


@every_isa
@pytest.mark.parametrize("tokens", [0, 1, 2, 29, 30, 31, 64, 2049])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 25), (48, 48), (97, 7)])
def test_sums_equal_those_of_64_bit_integers(isa: str, tokens: int, rows: int, columns: int) -> None:
    require(isa)
    left, right = numbers(tokens, rows), numbers(tokens, columns)
    sums = torch.randint(-(2**40), 2**40, (rows, columns))
    expected = sums + (left.long().unsqueeze(-1) * right.long().unsqueeze(1)).sum(0)
    cpu._C.add_products(left, right, sums, 2, isa)
    assert torch.equal(sums, expected)


@every_isa
@pytest.mark.parametrize("small", [1, 4, 6, 8, 12])
def test_numbers_so_small_that_more_of_them_fit_32_bits_are_summed_alike(isa: str, small: int) -> None:
    require(isa)
    left = (numbers(1000, 100) // small**2).contiguous()
    left[100:300, 60:] = LARGEST  # here and there they do not
    sums = torch.zeros(100, 100, dtype=torch.int64)
    cpu._C.add_products(left, left.clone(), sums, 2, isa)
    assert torch.equal(sums, left.long().T @ left.long())


@every_isa
@pytest.mark.parametrize("value", [1024, 2048, 2896, 2897, 4096, 5792, 5793, LARGEST])
def test_sums_of_one_sign_do_not_leave_32_bits_where_tokens_are_taken_together(isa: str, value: int) -> None:
    require(isa)
    left = torch.full((1030, 50), value, dtype=torch.int16)
    sums = torch.zeros(50, 50, dtype=torch.int64)
    cpu._C.add_products(left, left.clone(), sums, 1, isa)
    assert (sums == 1030 * value**2).all()


@every_isa
def test_the_largest_numbers_of_one_sign_do_not_overflow(isa: str) -> None:
    require(isa)
    left = torch.full((5000, 30), -LARGEST, dtype=torch.int16)
    sums = torch.zeros(30, 30, dtype=torch.int64)
    cpu._C.add_products(left, left.clone(), sums, 1, isa)
    assert (sums == 5000 * LARGEST**2).all()


@pytest.mark.parametrize("channels", [1, 24, 25, 130, 600])
def test_numbers_with_themselves_need_the_upper_half_alone(channels: int) -> None:
    left = numbers(70, channels)
    sums = torch.zeros(channels, channels, dtype=torch.int64)
    products.add_products(sums, left)
    products.mirror(sums)
    assert torch.equal(sums, left.long().T @ left.long())


def test_without_the_operator_the_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = numbers(300, 50), numbers(300, 20)
    found = torch.zeros(2, 50, 20, dtype=torch.int64)
    products.add_products(found[0], left, right)
    monkeypatch.setattr(products, "compiled", lambda name, device: None)
    products.add_products(found[1], left, right)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(("tokens", "rows", "columns"), [(1, 32, 32), (70, 64, 96), (66000, 32, 64), (33, 2080, None)])
def test_products_of_bytes_as_devices_take_them_give_the_same_sums(tokens: int, rows: int, columns: int | None) -> None:
    left, right = numbers(tokens, rows), None if columns is None else numbers(tokens, columns)
    left[0], left[-1] = LARGEST, -LARGEST
    found = torch.zeros(2, rows, columns or rows, dtype=torch.int64)
    products.add_products(found[0], left, right)
    products._add_products_of_bytes(found[1], left, right)
    for sums in found:
        if right is None:
            products.mirror(sums)
    assert torch.equal(found[0], found[1])


def test_numbers_that_32_bits_do_not_sum_are_refused() -> None:
    left = torch.tensor([[LARGEST + 1]], dtype=torch.int16)
    with pytest.raises(ValueError, match=r"lies outside -8192 \.\.\. 8192"):
        cpu._C.add_products(left, left, torch.zeros(1, 1, dtype=torch.int64), 1, "scalar")


@pytest.mark.parametrize(
    ("left", "right", "sums", "message"),
    [
        ((3, 4), (2, 5), (4, 5), "left has 3 tokens and right 2"),
        ((3, 4), (3, 5), (5, 4), r"sums has the shape \[5, 4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    left: tuple[int, int], right: tuple[int, int], sums: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cpu._C.add_products(
            torch.zeros(left, dtype=torch.int16),
            torch.zeros(right, dtype=torch.int16),
            torch.zeros(sums, dtype=torch.int64),
        )


def test_the_operator_says_what_it_changes() -> None:
    left, right = numbers(10, 5), numbers(10, 6)
    torch.library.opcheck(torch.ops.goldstick.add_products, (torch.zeros(5, 6, dtype=torch.int64), left, right))
