"""``transform_config``: what is written comes back, and what makes no sense is refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldstick.errors import FormatError, GoldstickError
from goldstick.formats.transform_config import TRANSFORM_CONFIG, InputTransforms, transform_config

DOWN = [f"model.layers.{index}.mlp.down_proj" for index in range(3)]
OTHERS = [f"model.layers.{index}.mlp.{name}" for index in range(3) for name in ("up_proj", "gate_proj")]


def read(groups: object) -> InputTransforms:
    return InputTransforms({TRANSFORM_CONFIG: {"config_groups": groups}})


def group(place: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A group of inputs of down projections, and what is different about it."""
    where = {"targets": ["re:.*down_proj$"], "location": "input"} | (place or {})
    return {"type": "hadamard", "apply": [where], "head_dim": 64} | changes


@given(sizes=st.dictionaries(st.sampled_from(DOWN + OTHERS), st.sampled_from([8, 32, 256]), min_size=1))
def test_what_is_written_is_read_again(sizes: dict[str, int]) -> None:
    others = [name for name in [*DOWN, *OTHERS, "lm_head"] if name not in sizes]
    found = InputTransforms({TRANSFORM_CONFIG: transform_config(sizes, others)})
    assert {name: found.size(name, 256) for name in sizes} == sizes
    assert not any(found.size(name, 256) for name in others)


def test_a_config_without_it_turns_nothing() -> None:
    for config in ({}, {TRANSFORM_CONFIG: None}, {TRANSFORM_CONFIG: {}}, {TRANSFORM_CONFIG: {"config_groups": {}}}):
        assert InputTransforms(config).size(DOWN[0], 512) == 0


def test_a_group_without_a_size_turns_all_channels_together_and_skips_what_it_ignores() -> None:
    found = read({"R4": group({"ignore": DOWN[1]}, head_dim=None)})
    assert [found.size(name, 512) for name in (*DOWN, "lm_head")] == [512, 0, 512, 0]


def test_what_was_done_to_weights_before_asks_nothing_of_a_reader() -> None:
    done = group({"location": "weight_input", "targets": ["Linear"]}, type="random-hadamard", randomize=True)
    assert read({"R1": done}).size(DOWN[0], 512) == 0


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (3, "no table 'config_groups'"),
        (None, "no table 'config_groups'"),
        ({"a": 3}, "'a' of transform_config has no list of tables"),
        ({"a": {"apply": "x"}}, "'a' of transform_config has no list of tables"),
        ({"a": {"apply": [3]}}, "'a' of transform_config has no list of tables"),
        ({"a": group(type="random-matrix")}, "a transform of type 'random-matrix' at 'input'"),
        ({"a": group(type=["x"] * 1000)}, "a transform of type"),
        ({"a": group(randomize=True)}, "without 'randomize' and 'requires_grad' only"),
        ({"a": group(requires_grad=True)}, "without 'randomize' and 'requires_grad' only"),
        ({"a": group({"location": "q_attn"})}, "at 'q_attn'"),
        ({"a": group({"location": None})}, "at None"),
        ({"a": group(head_dim="64")}, "has the head_dim '64'"),
        ({"a": group(head_dim=True)}, "has the head_dim True"),
        ({"a": group(head_dim=-8)}, "has the head_dim -8"),
        ({"a": group({"targets": [3]})}, "targets that are no list of names"),
        ({"a": group({"targets": {"x": 1}})}, "targets that are no list of names"),
        ({"a": group({"targets": ["Linear"]})}, "names a class"),
        ({"a": group({"targets": ["re:(a"]})}, "is refused"),
    ],
)
def test_what_makes_no_sense_is_refused(groups: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(groups)


@pytest.mark.parametrize(("size", "inputs"), [(24, 48), (64, 96), (None, 96), (1 << 20, 1 << 20), (10**30, 512)])
def test_sizes_that_do_not_fit_a_layer_are_refused(size: int | None, inputs: int) -> None:
    with pytest.raises(FormatError, match="a power of two that divides them"):
        read({"a": group(head_dim=size)}).size(DOWN[0], inputs)


def test_an_input_that_is_turned_twice_is_refused() -> None:
    with pytest.raises(FormatError, match="turned 2 times"):
        read({"a": group(), "b": group()}).size(DOWN[0], 512)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["input", "re:(", "hadamard"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "apply", "head_dim", "location", "targets", "ignore", "config_groups", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def test_groups_that_mean_no_module_are_named() -> None:
    read_ones = read({"R4": group(), "other": group({"targets": ["lm_head"]}), "ignored": group({"ignore": DOWN})})
    assert read_ones.idle([*DOWN, *OTHERS]) == ["other", "ignored"]
    assert read_ones.idle([*DOWN, "lm_head"]) == ["ignored"]


@given(told=JSON, apply=JSON, size=JSON)
def test_any_json_is_read_or_refused(told: object, apply: object, size: object) -> None:
    for config in (told, {"config_groups": told}, {"config_groups": {"a": group(apply=apply, head_dim=size)}}):
        with suppress(GoldstickError):
            size = InputTransforms({TRANSFORM_CONFIG: config}).size(DOWN[0], 512)
            assert type(size) is int and (size == 0 or 512 % size == 0)
