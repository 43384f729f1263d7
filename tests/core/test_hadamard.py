"""Rotations against the matrices written out: orthogonal, flat, the same bits at any number of threads."""

from __future__ import annotations

import pytest
import torch

from goldstick.core.hadamard import Rotation, hadamard, hadamard_orders, paley

KNOWN = [1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 56, 60, 64, 96, 112, 256]
WITHOUT = [3, 5, 7, 9, 14, 18, 25, 50]
BLOCKS = [8 * 23 * 1, 16 * 23]  # 92 = 4 · 23 has a Hadamard matrix, but none of Paley's


@pytest.mark.parametrize("size", KNOWN)
def test_a_hadamard_matrix_has_entries_of_one_and_orthogonal_rows(size: int) -> None:
    matrix = hadamard(size)
    assert torch.equal(matrix.abs(), torch.ones(size, size, dtype=torch.float64))
    assert torch.equal(matrix @ matrix.T, size * torch.eye(size, dtype=torch.float64))
    assert torch.equal(matrix[:, 0], torch.ones(size, dtype=torch.float64))


@pytest.mark.parametrize("order", [12, 20, 28, 36, 60, 76, 180])
def test_paleys_matrices_are_orthogonal(order: int) -> None:
    assert torch.equal(paley(order) @ paley(order).T, order * torch.eye(order, dtype=torch.float64))


@pytest.mark.parametrize("size", [768, 896, 1152, 1536, 2304, 2880, 3584, 4096, 5120, 7168])
def test_the_widths_of_common_models_are_mixed_whole(size: int) -> None:
    order, block = hadamard_orders(size)
    assert order * block == size


@pytest.mark.parametrize("keeps_ones", [False, True])
@pytest.mark.parametrize("size", KNOWN + WITHOUT + BLOCKS)
def test_every_rotation_is_orthogonal(size: int, keeps_ones: bool) -> None:
    matrix = Rotation(size=size, seed=3, keeps_ones=keeps_ones).matrix()
    assert (matrix @ matrix.T - torch.eye(size, dtype=torch.float64)).abs().max() < 1e-12
    if keeps_ones:
        ones = torch.ones(size, dtype=torch.float64)
        assert (matrix @ ones - ones).abs().max() < 1e-12


@pytest.mark.parametrize("size", KNOWN)
def test_a_rotation_of_a_known_order_is_flat(size: int) -> None:
    matrix = Rotation(size=size, seed=5).matrix()
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, size**-0.5), rtol=1e-12, atol=0)


def test_a_rotation_is_random_signs_times_the_hadamard_matrix() -> None:
    matrix = Rotation(size=24, seed=1).matrix()
    signs = (matrix / hadamard(24))[:, :1] * 24**0.5
    torch.testing.assert_close(signs * hadamard(24) / 24**0.5, matrix)
    assert {-1, 1} == set(signs.round().flatten().tolist())


@pytest.mark.parametrize("size", [16, 24, 9])
def test_wider_rows_are_turned_block_by_block(size: int) -> None:
    rotation = Rotation(size=size, seed=0)
    rows = torch.randn(2, 5, 3 * size, dtype=torch.float64)
    expected = rows @ torch.block_diag(*[rotation.matrix()] * 3)
    torch.testing.assert_close(rotation.turn(rows), expected)
    with pytest.raises(ValueError, match="cannot be turned"):
        rotation.turn(rows[..., 1:])


def test_seeds_tell_rotations_apart() -> None:
    assert not torch.equal(Rotation(size=16, seed=0).matrix(), Rotation(size=16, seed=1).matrix())


@pytest.mark.parametrize("keeps_ones", [False, True])
@pytest.mark.parametrize("size", [256, 896])
def test_any_number_of_threads_gives_the_same_bits(size: int, keeps_ones: bool) -> None:
    rows = torch.randn(300, size, dtype=torch.float64)
    rotation, threads = Rotation(size=size, seed=0, keeps_ones=keeps_ones), torch.get_num_threads()
    try:
        turned = []
        for count in (1, 2):
            torch.set_num_threads(count)
            turned.append(rotation.turn(rows))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*turned)


def test_orders_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="order 92"):
        hadamard(92)
    with pytest.raises(ValueError, match="order 14"):
        paley(14)
    with pytest.raises(ValueError, match="at least one"):
        Rotation(size=0, seed=0)
