"""Patterns: they match exactly the names they stand for, as every reader of the format matches."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from goldstick.formats.name_patterns import module_names, patterns_for

PARTS = st.sampled_from(["model", "layers", "0", "1", "12", "mlp", "experts", "up-proj", "w1", "a+b", "layer_2"])
NAMES = st.lists(st.lists(PARTS, min_size=1, max_size=5).map(".".join), max_size=25, unique=True)


def hit(pattern: str, name: str) -> bool:
    """As compressed-tensors and vLLM match: a regular expression after ``re:``, otherwise the whole name."""
    return re.match(pattern[3:], name) is not None if pattern.startswith("re:") else pattern == name


@given(names=NAMES, data=st.data())
def test_every_name_is_matched_and_none_of_the_others(names: list[str], data: st.DataObject) -> None:
    chosen = [name for name in names if data.draw(st.booleans())]
    others = [name for name in names if name not in chosen]
    patterns = patterns_for(chosen, others)
    for name in chosen:
        assert any(hit(pattern, name) for pattern in patterns), name
    for name in others:
        assert not any(hit(pattern, name) for pattern in patterns), name
    assert len(patterns) <= len(chosen)


def test_the_layers_of_a_model_are_said_in_one_line() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w1" for layer in range(40) for expert in range(8)]
    assert patterns_for([*names, "lm_head"], ["model.layers.0.mlp.gate"]) == [
        r"re:^model\.layers\.\d+\.mlp\.experts\.\d+\.w1$",
        "lm_head",
    ]


def test_a_layer_left_out_makes_the_others_be_listed() -> None:
    names = [f"model.layers.{layer}.up" for layer in range(3)]
    assert patterns_for(names[:2], names[2:]) == names[:2]


def test_a_module_has_its_name_in_the_model_where_that_is_another() -> None:
    assert module_names("model.norm.weight", "model.norm.weight") == ["model.norm"]
    assert module_names("a.lm_head.weight", "lm_head.weight") == ["a.lm_head", "lm_head"]
    assert module_names("x.experts.0.w1.weight", "x.experts.gate_up_proj") == ["x.experts.0.w1"]
    assert module_names("x.experts.gate_up_proj", "x.experts.gate_up_proj") == []


def test_nothing_gives_nothing() -> None:
    assert patterns_for([], ["lm_head"]) == []
