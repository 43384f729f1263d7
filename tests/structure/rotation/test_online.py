"""Inputs that are turned at run time: which layers, found by trying; what is left; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import goldstick
from goldstick import surgery
from goldstick.algorithms.rotation import RandomRotation
from goldstick.core.input_rotation import input_rotation
from goldstick.errors import RecipeError, StructureError
from goldstick.structure import Network
from goldstick.structure.probe.double import double_precision
from goldstick.structure.rotation.plan import RotationPlan
from goldstick.structure.rotation.search import find_rotation
from tests.support.tiny_models import FAMILIES, meta_model, output_tensor, sample_inputs

#: Family → the layers of its last block whose inputs are turned, and what is left beside them.
FOUND = {
    "llama_gqa": ({"self_attn.o_proj": 64, "mlp.down_proj": 128}, []),
    "phi3": ({"self_attn.o_proj": 64, "mlp.down_proj": 128}, []),
    "opt": ({"self_attn.out_proj": 64, "fc2": 128}, []),
    "gpt2": ({"attn.c_proj": 64, "mlp.c_proj": 256}, []),
    "mixtral": ({"self_attn.o_proj": 64}, ["mlp.experts.down_proj"]),
}


def plan_of(model: Any, **options: Any) -> RotationPlan:
    return find_rotation(Network(model), sample_inputs(model), online=True, **options)


@pytest.mark.parametrize("family", FOUND)
def test_layers_that_write_to_the_residual_turn_their_input_and_the_output_stays(family: str) -> None:
    model = FAMILIES[family]()
    plan, (inputs, left) = plan_of(model), FOUND[family]
    last = plan.blocks[-1]
    assert {one.parameter.removeprefix(f"{last.block}."): one.size for one in last.inputs} == {
        f"{name}.weight": size for name, size in inputs.items()
    }
    assert [name.removeprefix(f"{last.block}.") for name in last.inputs_left] == left
    surgery.index_experts_one_by_one(model)
    with double_precision():
        before = output_tensor(model.double(), sample_inputs(model))
        network = Network(model)
        surgery.apply(network, RandomRotation(online=True).edits(plan))
        turned = sum(input_rotation(module) > 0 for module in model.modules())
        after = output_tensor(model, sample_inputs(model))
    assert turned == len(plan.inputs)
    assert float((after - before).norm() / before.norm()) < 1e-9


def test_it_is_found_on_the_meta_device_as_well() -> None:
    real = FAMILIES["llama_gqa"]()
    found = find_rotation(Network(meta_model("llama_gqa")), sample_inputs(real), online=True)
    assert found.inputs == plan_of(real).inputs


def test_inputs_alone_can_be_turned_and_blocks_be_small() -> None:
    plan = plan_of(FAMILIES["llama_gqa"](), residual=False, heads=False, block_size=32)
    assert set(plan.inputs.values()) == {32}
    assert plan.rotation(0) is None


def test_a_residual_is_turned_in_blocks_that_divide_it() -> None:
    with pytest.raises(StructureError, match="64 channels, which are no whole blocks of 128"):
        plan_of(FAMILIES["llama_gqa"](), block_size=128)


@pytest.mark.parametrize("size", [0, 4, 48, 1 << 16])
def test_sizes_that_no_block_has_are_refused(size: int) -> None:
    with pytest.raises(RecipeError, match="block_size is a power of two from 8 to 32768"):
        RandomRotation(block_size=size)


def test_a_rotation_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="turns nothing"):
        RandomRotation(residual=False, heads=False)


def test_a_recipe_that_quantizes_no_turned_layer_is_refused() -> None:
    stage = {"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*q_proj"]}}}
    with pytest.raises(RecipeError, match="the recipe quantizes none of them"):
        goldstick.apply(FAMILIES["llama_gqa"](), {"stages": [{"rotate": {"online": True}}, stage]})
