"""Grids: what they refuse, and the few numbers that follow from their fields."""

from __future__ import annotations

from typing import Any

import pytest

from goldstick.core.grid import Grid
from goldstick.errors import RecipeError


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_of_b_bits_run_from_0_to_one_below_2_to_the_b_around_the_middle(bits: int) -> None:
    grid = Grid(bits=bits)
    assert grid.code_max == 2**bits - 1
    assert grid.midpoint == 2 ** (bits - 1)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"bits": 0}, "1 to 8 bits, not 0"),
        ({"bits": 9}, "1 to 8 bits, not 9"),
        ({"granularity": "group"}, "group_size of at least 2, not None"),
        ({"granularity": "group", "group_size": 1}, "at least 2, not 1"),
        ({"granularity": "group", "group_size": -1}, "at least 2, not -1"),
        ({"granularity": "channel", "group_size": 32}, "no meaning with granularity 'channel'"),
        ({"granularity": "token", "group_size": 32}, "no meaning with granularity 'token'"),
        ({"granularity": "tensor", "group_size": 32}, "no meaning with granularity 'tensor'"),
        ({"granularity": "row"}, "by channel, group, token or tensor, not by 'row'"),
    ],
)
def test_a_grid_that_means_nothing_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        Grid(**fields)


@pytest.mark.parametrize(
    ("grid", "in_features", "divides", "width", "groups"),
    [
        (Grid(bits=4, granularity="group", group_size=32), 128, True, 32, 4),
        (Grid(bits=4, granularity="group", group_size=32), 172, False, 32, 6),
        (Grid(bits=4, granularity="group", group_size=128), 64, False, 128, 1),
        (Grid(bits=8), 172, True, 172, 1),
    ],
)
def test_rows_split_into_groups(grid: Grid, in_features: int, divides: bool, width: int, groups: int) -> None:
    assert grid.divides(in_features) is divides
    assert grid.group_width(in_features) == width
    assert grid.groups(in_features) == groups


def test_only_grids_by_token_find_their_scales_at_run_time() -> None:
    assert Grid(bits=8, granularity="token").dynamic
    assert not Grid(bits=8).dynamic
    assert not Grid(bits=8, granularity="tensor").dynamic
    assert not Grid(bits=8, granularity="group", group_size=2).dynamic


def test_labels_differ_wherever_grids_differ() -> None:
    grids = [Grid(bits=bits, symmetric=symmetric) for bits in range(1, 9) for symmetric in (True, False)]
    grids += [
        Grid(bits=bits, symmetric=symmetric, granularity="group", group_size=size)
        for bits in range(1, 9)
        for symmetric in (True, False)
        for size in (32, 64, 128)
    ]
    assert len({grid.label for grid in grids}) == len(grids)
    assert Grid(bits=3, symmetric=False, granularity="group", group_size=64).label == "3-g64-asym"
