"""Element types: tables of numbers, and rounding to the nearest of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.core.element import ELEMENTS, Element

SIGNED = [name for name, element in ELEMENTS.items() if element.signed]
every = pytest.mark.parametrize("name", ELEMENTS)


def test_the_numbers_of_an_element_are_integers_where_bytes_hold_them() -> None:
    for name, element in ELEMENTS.items():
        integers = element.integers()
        assert (integers is None) == (name in ("e4m3", "e5m2", "e3m2", "nf4", "bnbfp4"))
        if integers is not None:
            assert torch.equal((integers.entries.float() - integers.middle) * integers.unit, element.table())
    fp4 = ELEMENTS["e2m1"].integers()
    assert fp4 is not None and (fp4.middle, fp4.unit) == (12, 0.5)


def nearest_slowly(element: Element, value: float) -> float:
    """The value nearest to a number, of two equally near ones that of the even code, by trying all."""
    table = element.table().double()
    best, least, chosen = 0.0, float("inf"), 0
    for code in range(len(table)):
        number = float(table[code])
        if number != number or abs(number) == float("inf"):
            continue
        distance = abs(number - value)
        if distance < least or (distance == least and code % 2 == 0 and chosen % 2 == 1):
            best, least, chosen = number, distance, code
    return best


@every
def test_every_code_of_a_number_is_rounded_to_itself(name: str) -> None:
    element = ELEMENTS[name]
    codes = torch.arange(2**element.bits, dtype=torch.uint8)
    numbers = element.numbers(codes)
    real = numbers.isfinite() & ~((numbers == 0) & numbers.signbit())
    assert torch.equal(element.round(numbers[real]), codes[real])
    assert torch.equal(element.numbers(codes)[real], element.table()[codes[real].long()])
    assert numbers[real].abs().max() == element.largest


@every
@given(value=st.floats(-600, 600, width=32))
def test_it_rounds_to_the_nearest_number(name: str, value: float) -> None:
    element = ELEMENTS[name]
    found = float(element.numbers(element.round(torch.tensor([value]))))
    assert found == nearest_slowly(element, value)


@every
def test_ties_go_to_the_even_code(name: str) -> None:
    element = ELEMENTS[name]
    values = torch.tensor(element.values, dtype=torch.float64)
    middles = (values[1:] + values[:-1]) / 2
    exact = middles.float().double() == middles
    codes = element.round(middles.float())[exact]
    assert len(codes) and bool((codes % 2 == 0).all())


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_the_table_rounds_as_the_dtype_of_torch_does(name: str) -> None:
    element = ELEMENTS[name]
    table = dataclasses.replace(element, dtype=None)
    x = torch.cat([torch.randn(2000) * scale for scale in (1e-6, 1e-3, 1, 100, 1e5)])
    assert torch.equal(element.round(x), table.round(x))
    assert torch.equal(element.table().nan_to_num(nan=-1), expected(element).nan_to_num(nan=-1))


def expected(element: Element) -> Tensor:
    assert element.dtype is not None
    return torch.arange(256, dtype=torch.uint8).view(element.dtype).float()


@pytest.mark.parametrize("name", SIGNED)
def test_what_is_rounded_to_zero_from_below_keeps_its_sign(name: str) -> None:
    element = ELEMENTS[name]
    assert element.round(torch.tensor([1e-12, -1e-12])).tolist() == [0, 1 << (element.bits - 1)]


def test_what_lies_outside_is_clamped() -> None:
    for element in ELEMENTS.values():
        ends = element.numbers(element.round(torch.tensor([1e30, -1e30])))
        low = -element.largest if element.signed else element.values[0]
        assert ends.tolist() == [element.values[-1], low], element.name


def test_fp4_is_a_byte_of_halves() -> None:
    assert ELEMENTS["e2m1"].values == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
