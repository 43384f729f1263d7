"""Transforms of inputs at run time: the definition against Sylvester's matrix, and the hook that makes them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from goldstick.core.input_rotation import (
    hadamard_transform,
    input_rotation,
    plain_transform,
    release_input,
    rotate_input,
    transform_size,
)


def sylvester(size: int) -> Tensor:
    """H of order n, float64, by its recursion."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


@pytest.mark.parametrize("size", [1, 2, 8, 64, 256])
def test_the_transform_is_the_product_with_sylvesters_matrix(size: int) -> None:
    x = torch.randn(3, 2, 2 * size, dtype=torch.float64)
    expected = (x.reshape(-1, size) @ sylvester(size) / math.sqrt(size)).reshape(x.shape)
    torch.testing.assert_close(plain_transform(x, size), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain_transform(x.float(), size), expected.float())


@given(exponent=st.integers(0, 7), seed=st.integers(0, 99))
def test_the_transform_undoes_itself_and_keeps_lengths(exponent: int, seed: int) -> None:
    x = torch.randn(2, 3 << exponent, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    turned = plain_transform(x, 1 << exponent)
    torch.testing.assert_close(plain_transform(turned, 1 << exponent), x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("size", [0, -8, 3, 24, 16])
def test_sizes_that_do_not_fit_are_refused(size: int) -> None:
    for transform in (plain_transform, hadamard_transform):
        with pytest.raises(ValueError, match="cannot be turned in blocks"):
            transform(torch.zeros(2, 24), size)


@pytest.mark.parametrize(
    ("width", "limit", "size"),
    [(512, None, 512), (11008, None, 256), (172, None, 0), (96, None, 32), (512, 32, 32), (1 << 20, None, 1 << 15)],
)
def test_the_size_is_the_largest_power_of_two_that_divides(width: int, limit: int | None, size: int) -> None:
    assert transform_size(width, limit) == size


def test_a_hook_turns_what_a_layer_is_given_before_others_see_it() -> None:
    layer, seen = nn.Linear(16, 4), []
    layer.register_forward_pre_hook(lambda _, args: seen.extend(args))
    x = torch.randn(2, 16)
    expected = nn.functional.linear(plain_transform(x, 8), layer.weight, layer.bias)
    rotate_input(layer, 8)
    rotate_input(layer, 8)
    assert input_rotation(layer) == 8
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(input=x), expected)
    assert torch.equal(seen[0], plain_transform(x, 8))
    with pytest.raises(ValueError, match="in blocks of 8 already"):
        rotate_input(layer, 16)


def test_a_hook_is_taken_away_once() -> None:
    layer, x = nn.Linear(16, 4), torch.randn(2, 16)
    expected = layer(x)
    rotate_input(layer, 8)
    assert release_input(layer) == 8
    assert release_input(layer) == input_rotation(layer) == 0
    assert torch.equal(layer(x), expected)
