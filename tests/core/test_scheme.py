"""Schemes: names in, names out, and what no layer can become."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO, Granularity, Grid
from goldstick.core.scheme import FLOAT_INPUTS, NUMBER_FORMATS, PRESETS, Scheme
from goldstick.errors import RecipeError


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_name_is_read_back_from_its_own_label(name: str) -> None:
    scheme = Scheme.parse(name)
    assert Scheme.parse(scheme.label) == scheme


INTEGERS = {name: described for name, described in PRESETS.items() if name not in NUMBER_FORMATS}


@pytest.mark.parametrize("name", NUMBER_FORMATS)
def test_a_number_format_has_float_weights_or_float_inputs_and_its_own_name(name: str) -> None:
    scheme = Scheme.parse(name)
    assert scheme.label == name
    float_inputs = scheme.activation is not None and not scheme.activation.integers
    assert not scheme.weight.integers or float_inputs or scheme.weight.superblock
    assert ("activations" in PRESETS[name]) is (scheme.activation is not None)
    assert ("from data" in PRESETS[name] or "comes from data" in PRESETS[name]) is scheme.static_input


@pytest.mark.parametrize(("name", "description"), INTEGERS.items())
def test_every_preset_is_what_its_description_says(name: str, description: str) -> None:
    scheme = Scheme.parse(name)
    assert description.startswith(f"{scheme.weight.bits}-bit weights")
    assert ("asymmetric" in description) is not scheme.weight.symmetric
    if scheme.weight.group_size is None:
        assert "per channel" in description or "per output channel" in description
    else:
        assert f"groups of {scheme.weight.group_size}" in description
    said = re.search(r"([48])-bit activations", description)
    assert (said and int(said[1])) == (scheme.activation and scheme.activation.bits)
    assert ("per token at run time" in description) is (scheme.activation is not None and scheme.activation.dynamic)
    assert ("one scale per tensor" in description) is scheme.static_input


def test_a_name_says_bits_grain_symmetry_and_activations() -> None:
    assert Scheme.parse("w4a16-g128-asym") == Scheme(
        weight=Grid(bits=4, symmetric=False, granularity="group", group_size=128)
    )
    assert Scheme.parse("w8a8-dynamic") == Scheme(
        weight=Grid(bits=8, granularity="channel"), activation=Grid(bits=8, granularity="token")
    )
    assert Scheme.parse("w4a4-dynamic-g64") == Scheme(
        weight=Grid(bits=4, granularity="group", group_size=64), activation=Grid(bits=4, granularity="token")
    )
    static = Grid(bits=8, granularity="tensor")
    assert Scheme.parse("w8a8-static") == Scheme(weight=Grid(bits=8), activation=static)
    assert Scheme.parse("w4a8-static-shifted-g32-asym") == Scheme(
        weight=Grid(bits=4, symmetric=False, granularity="group", group_size=32),
        activation=Grid(bits=8, symmetric=False, granularity="tensor"),
    )
    assert Scheme.parse("w8a8-static-asym").activation == static, "-asym is the weight's"
    assert Scheme.parse("w3a16") == Scheme.parse("w3a16-channel") == Scheme(weight=Grid(bits=3))


ACTIVATIONS = [
    None,
    Grid(bits=8, granularity="token"),
    Grid(bits=4, granularity="token"),
    Grid(bits=8, granularity="tensor"),
    Grid(bits=8, symmetric=False, granularity="tensor"),
]


def test_only_a_static_input_needs_its_range_beforehand() -> None:
    weight = Grid(bits=8)
    static = [Scheme(weight=weight, activation=activation).static_input for activation in ACTIVATIONS]
    assert static == [False, False, False, True, True]
    labels = {Scheme(weight=weight, activation=activation).label for activation in ACTIVATIONS}
    assert len(labels) == len(ACTIVATIONS), "checkpoints list schemes by label"


@given(
    bits=st.integers(1, 8),
    symmetric=st.booleans(),
    group=st.none() | st.integers(2, 4096),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_any_scheme_is_read_back_from_its_label(
    bits: int, symmetric: bool, group: int | None, activation: Grid | None
) -> None:
    weight = Grid(bits=bits, symmetric=symmetric, granularity="group" if group else "channel", group_size=group)
    scheme = Scheme(weight=weight, activation=activation)
    assert Scheme.parse(scheme.label) == scheme


@pytest.mark.parametrize("activation", [None, *FLOAT_INPUTS.values()], ids=lambda grid: grid.label if grid else "16")
@pytest.mark.parametrize(
    "weight",
    [
        Grid(bits=4, symmetric=False, granularity="group", group_size=64),
        Grid(bits=8),
        Grid(element="e4m3", granularity="tensor"),
        Grid(element="e4m3", granularity="block", group_size=64),
        Grid(element="e3m2", bits=6, granularity="group", group_size=32, scale=POWERS_OF_TWO),
        Grid(element="e2m1", bits=4, granularity="group", group_size=32, scale=FLOAT8_SCALES),
    ],
    ids=lambda grid: grid.label,
)
def test_float_grids_without_a_name_are_read_back_from_their_label(weight: Grid, activation: Grid | None) -> None:
    scheme = Scheme(weight=weight, activation=activation)
    assert Scheme.of_label(scheme.label) == scheme


@pytest.mark.parametrize("label", ["w-x1y1-channel-a-16", "w-e4m3-a-16", "w-e4m3-g0-a-16", "w-4-tensor-a-16", "w-"])
def test_what_is_no_label_has_no_scheme(label: str) -> None:
    with pytest.raises(RecipeError):
        Scheme.of_label(label)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("w4a16g128", "w4a16-g128"),
        ("W8A16", "w2a16|w3a16|w8a16|A name reads"),
        ("w8a8", "w8a8-dynamic|w8a16"),
        ("w4a16-dynamic", "w4a8-dynamic-"),
        ("w8a16-static", "w8a8-static"),
        ("w8a8-shifted", "w8a8-static"),
        ("w8a8-dynamic-shifted", "w8a8-dynamic"),
        ("w4a16-g128-sym", "w4a16-g128-asym"),
        ("int4-g128", "g128"),
    ],
)
def test_a_wrong_name_brings_the_nearest_right_ones(name: str, nearest: str) -> None:
    with pytest.raises(RecipeError, match=f"No scheme is called '{name}'.*({nearest})"):
        Scheme.parse(name)


@pytest.mark.parametrize(
    "name", ["w9a16", "w0a16", "w4a4", "w4a4-static", "", "w4a16-g0", "w4a16-g1", "w4a16-", " w8a16", "w8a16\n"]
)
def test_a_name_that_is_almost_one_is_none(name: str) -> None:
    with pytest.raises(RecipeError):
        Scheme.parse(name)


def test_a_group_of_none_is_refused_as_a_group() -> None:
    with pytest.raises(RecipeError, match="group_size of at least 2, not 0"):
        Scheme.parse("w4a16-g0")


@pytest.mark.parametrize("granularity", ["token", "tensor"])
def test_weights_have_scales_by_channel_or_group(granularity: Granularity) -> None:
    with pytest.raises(RecipeError, match=f"no scale per {granularity}: its granularity is channel or group"):
        Scheme(weight=Grid(bits=8, granularity=granularity))


@pytest.mark.parametrize(
    "activation",
    [
        Grid(bits=6, granularity="token"),
        Grid(bits=8, granularity="channel"),
        Grid(bits=8, granularity="token", symmetric=False),
        Grid(bits=4, granularity="tensor"),
    ],
)
def test_activations_are_8_or_4_bit_by_token_or_8_bit_by_tensor_or_float(activation: Grid) -> None:
    with pytest.raises(RecipeError, match="per token at run time"):
        Scheme(weight=Grid(bits=8), activation=activation)
