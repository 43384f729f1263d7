"""What several processes take, foreseen from shapes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldstick.calibration.memory_budget import BASE_MEMORY
from goldstick.errors import UsageError
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.plan.several_ranks import RanksForecast, forecast_ranks
from goldstick.recipes.recipe import Recipe
from tests.support.crash_points import tiny_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    tiny_checkpoint(folder, 2)
    return folder


def forecast(model: Path, recipe: str, processes: int) -> RanksForecast:
    return forecast_ranks(make_plan(model, Recipe.load(recipe)), processes)


def test_batches_are_divided_and_blocks_and_hessians_are_not(model: Path) -> None:
    one, eight = forecast(model, "gptq-w4a16-g32", 1), forecast(model, "gptq-w4a16-g32", 8)
    assert one.batches > eight.batches
    assert (one.block, one.hessian, one.outside) == (eight.block, eight.hessian, eight.outside)
    assert one.held == BASE_MEMORY + one.block + one.hessian + one.outside + one.batches
    assert one.sent == 0 < eight.sent


def test_hessians_are_most_of_what_a_calibrated_run_sends(model: Path) -> None:
    plan = make_plan(model, Recipe.load("gptq-w4a16-g32"))
    sites = {tensor.assignment.site.name: tensor.assignment.site for tensor in plan.tensors if tensor.assignment}
    sums = sum(8 * site.in_features**2 for site in sites.values())
    assert sums < forecast_ranks(plan, 2).sent


def test_a_run_without_data_sends_the_packed_tensors_of_a_rank(model: Path) -> None:
    plan = make_plan(model, Recipe.load("rtn-w4a16-g32"))
    packed = sum(tensor.bytes_after for tensor in plan.tensors if tensor.assignment)
    assert forecast_ranks(plan, 4).sent == packed // 4


def test_too_little_memory_is_refused_with_what_does_not_fit_and_a_remedy(model: Path) -> None:
    found = forecast(model, "gptq-w4a16-g32", 2)
    found.require(found.held)
    with pytest.raises(UsageError, match=r"held by each of 2 processes at least.*Start fewer processes"):
        found.require(found.held - 1)
