"""Every method on superblocks: it rounds to them, or says beforehand that it cannot."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.algorithms.column_importance import without_importance
from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.nn.packed import PackedWeight
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from tests.support.tiny_models import GROUPED, tiny

WIDE = {**GROUPED, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}


def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": torch.randint(0, WIDE["vocab_size"], (4, 64), generator=generator)} for _ in range(4)]


@pytest.mark.parametrize(
    ("words", "name"),
    [(words, "q4_k") for words in ("rtn", "imatrix", "gptq", "gptaq", "awq", "awq-gptq", "rotate-gptq")]
    + [(words, name) for words in ("imatrix", "gptq") for name in ("q3_k", "iq4_xs")],
)
def test_a_method_rounds_to_superblocks(words: str, name: str) -> None:
    model = tiny(LlamaForCausalLM, LlamaConfig(**WIDE))()
    recipe = Recipe.load(f"{words}-{name}")
    result = goldstick.apply(model, recipe, data=batches() if needs_data(recipe.stages) else None)
    packed = [module for module in result.model.modules() if isinstance(module, PackedWeight)]
    assert len(packed) == 7
    assert {module.scheme for module in packed} == {Scheme.parse(name)}
    with torch.no_grad():
        right, found = (one(batches()[0]["input_ids"]).logits for one in (model, result.model))
    assert (found - right).square().mean() < 0.25 * right.square().mean()  # other weights: 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("hqq-q4_k", "hqq moves zeros, and q4_k has whole minimums"),
        ("slb-q4_k", "slb trains integer codes with float scales, and q4_k has none"),
        ("gptq-slb_finish-q4_k", "searches integer codes with float scales, and q4_k has none"),
        ("hqq-q4_k_m", "hqq moves zeros, and q4_k has whole minimums"),
    ],
)
def test_what_moves_scales_refuses_them(words: str, complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        goldstick.apply(tiny(LlamaForCausalLM, LlamaConfig(**WIDE))(), Recipe.load(words), data=batches())


def test_a_search_that_looks_at_inputs_has_one_that_does_not() -> None:
    assert [without_importance(search) for search in ("imatrix", "ggml-imatrix", "minmax")] == ["mse", "ggml", "minmax"]


def test_integers_with_float_scales_are_plain() -> None:
    assert Grid(bits=4).plain
    assert not Scheme.parse("q6_k").weight.plain
    assert not Scheme.parse("nf4a16").weight.plain
