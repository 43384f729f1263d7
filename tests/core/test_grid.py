"""Grids: what they refuse, and the few numbers that follow from their fields."""

from __future__ import annotations

from typing import Any

import pytest

from goldstick.core.grid import FLOAT8_SCALES, Grid
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
        ({"granularity": "row"}, "by channel, group, block, token or tensor, not by 'row'"),
        ({"element": "e9m9"}, "No element is called 'e9m9'; there are int, e4m3"),
        ({"element": "e2m1"}, "e2m1 has 4 bits and no zero: write bits: 4"),
        ({"element": "e4m3", "symmetric": False}, "e4m3 has 8 bits and no zero"),
        ({"element": "e8m0"}, "Powers of two"),
        ({"element": "e4m3", "granularity": "none"}, "Powers of two"),
        (
            {"scale": Grid(element="e8m0", granularity="none")},
            "The scales of an integer grid are floats or integers by superblock",
        ),
        ({"element": "e4m3", "scale": Grid(element="e5m2")}, "Scales lie on a grid of powers of two"),
        ({"element": "e4m3", "scale": Grid(bits=4)}, "Scales that are integers belong to weights by group"),
        ({"granularity": "block"}, "A grid by block needs a group_size"),
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


def test_inputs_by_token_and_by_group_find_their_scales_at_run_time() -> None:
    assert Grid(bits=8, granularity="token").dynamic
    assert Grid(element="e4m3", granularity="group", group_size=128).dynamic
    assert not Grid(bits=8).dynamic
    assert not Grid(bits=8, granularity="tensor").dynamic
    assert not Grid(element="e2m1", bits=4, granularity="group", group_size=16, scale=FLOAT8_SCALES).dynamic


def test_a_block_may_end_early_and_a_group_may_not() -> None:
    assert Grid(element="e4m3", granularity="block", group_size=128).divides(200)
    assert not Grid(granularity="group", group_size=128).divides(200)


def test_checkpoints_say_of_integers_what_they_always_said() -> None:
    assert Grid(bits=4).described().keys() == {"bits", "symmetric", "granularity", "group_size"}
    assert Grid(element="e4m3").described()["element"] == "e4m3"


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
