"""Which recipes reach what is aimed at beside llama.cpp's quantizer, as docs/k-quants.md says, by what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llama_cpp_quantizer import TARGETS
from goldstick.algorithms import GPTQ
from goldstick.recipes.recipe import Recipe

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "llama-cpp-quantizer.json"
MISSED = {("stories260k", "q3_k_m", "gptq"), ("stories260k", "q2_k_m", "gptq")}


def test_gptaq_reaches_every_target_and_gptq_alone_misses_two_of_the_smaller_model() -> None:
    models: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["models"]
    missed = {
        (model, mixture, method)
        for model, mixtures in models.items()
        for mixture, rows in mixtures.items()
        for method in ("gptq", "gptaq")
        if rows[method]["to_llama_cpp"][2] > TARGETS[mixture]  # the upper end of the interval
    }
    assert {*models} == {"reference", "stories260k"}
    assert missed == MISSED


@pytest.mark.parametrize("mixture", TARGETS)
def test_the_command_lines_effort_makes_gptq_of_a_mixture_gptaq(mixture: str) -> None:
    recipe = Recipe.load(f"gptq-{mixture}")
    for effort, expected in (("fast", False), ("default", True)):
        found = [stage.gptaq for stage in recipe.with_effort(effort).stages if isinstance(stage, GPTQ)]
        assert found and set(found) == {expected}
