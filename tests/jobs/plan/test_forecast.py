"""Forecasts of the time: what an effort adds is in them before it is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goldstick.jobs.plan.forecast import FEATURE_SPEED, MATMUL_SPEED, calibration_seconds, streaming_seconds
from goldstick.jobs.plan.plan import make_plan
from goldstick.recipes import Recipe
from goldstick.recipes.calibration import Calibration
from tests.support.tiny_models import FAMILIES

MATRICES = [(256, 256), (512, 256), (256, 512)]
DATA = Calibration(samples=128, seq_len=256)
FORWARD = 128 * 256 * (2 * (256 * 256 + 2 * 256 * 512) / MATMUL_SPEED + (512 + 2 * 768) / FEATURE_SPEED)


def forwards(*stages: dict[str, dict[str, Any]], data: Calibration = DATA, context: int = 4096) -> float:
    """How many forward passes of the data a recipe is said to take."""
    recipe = Recipe.load({"stages": list(stages)})
    return calibration_seconds(recipe.stages, MATRICES, data, context) / FORWARD


def gptq(**options: Any) -> dict[str, dict[str, Any]]:
    return {"gptq": {"scheme": "w4a16-g128", **options}}


def test_a_calibrated_recipe_takes_a_pass_and_one_for_its_statistics() -> None:
    assert forwards(gptq()) == pytest.approx(2)


def test_whatever_a_stage_goes_through_again_is_in_it() -> None:
    options: list[dict[str, Any]] = [
        {}, {"gptaq": True}, {"gptaq": True, "objective": "output"}, {"gptaq": True, "objective": "loss"},
        {"gptaq": True, "objective": "loss", "two_sided": True},
    ]  # fmt: skip
    found = [forwards(gptq(**one)) for one in options]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert forwards(gptq(), {"validate": {}}) > found[0]
    assert forwards(gptq(), {"distill": {"epochs": 8}}) > forwards(gptq(), {"distill": {"epochs": 4}}) > found[0]


def test_learning_takes_what_its_steps_take_beside_the_batches() -> None:
    none, few, many = (forwards(gptq(), {"learn": {"steps": steps}}) for steps in (1, 101, 201))
    assert many - few == pytest.approx(few - none)
    assert few - none == pytest.approx(5 * 100 / 64)  # of 64 batches of 512 tokens


def test_no_sample_is_longer_than_the_context_and_random_tokens_are_more_of_them() -> None:
    longer = Calibration(samples=128, seq_len=2048)
    assert forwards(gptq(), data=longer, context=256) == pytest.approx(forwards(gptq()))
    assert forwards(gptq(), data=longer) == pytest.approx(8 * forwards(gptq()))
    more = Calibration(samples=128, seq_len=256, random_tokens=0.25)
    assert forwards(gptq(), data=more) == pytest.approx(1.25 * forwards(gptq()))


def test_a_plan_takes_longer_the_more_effort_it_is_to_make(tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path)
    recipes = [Recipe.load("gptq-w4a16-g32").with_effort(effort) for effort in ("fast", "default", "best")]
    plans = [make_plan(tmp_path, recipe) for recipe in recipes]
    fast, default, best = (plan.seconds - plan.streaming_seconds for plan in plans)
    assert 0 < 2 * fast < default < best / 2
    assert plans[0].streaming_seconds == streaming_seconds(recipes[0].stages, plans[0].bytes_before)
    assert make_plan(tmp_path, Recipe.load("rtn-w4a16-g32")).seconds < plans[0].seconds
