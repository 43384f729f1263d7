"""Effort: what each adds to which recipes, and what it leaves alone."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import goldstick
from goldstick.algorithms import AWQ, GPTQ, Descent, Learn, Validate
from goldstick.cli import main
from goldstick.recipes.effort import Effort


def stages(words: str, effort: Effort) -> list[str]:
    return [stage.name for stage in goldstick.Recipe.load(words).with_effort(effort).stages]


@pytest.mark.parametrize(
    ("words", "default", "best"),
    [
        ("gptq-w4a16-g128", "gptq validate", "gptq validate learn"),
        ("awq-gptq-w4a16-g128-kv8", "awq gptq validate kv_cache", "awq gptq validate learn kv_cache"),
        ("awq-w4a16-g128", "awq validate", "awq validate learn"),
        ("gptq-slb_finish-w2a16-g32", "gptq validate slb_finish", "gptq validate slb_finish"),
        ("smoothquant-gptq-w8a8-dynamic", "smoothquant gptq validate", "smoothquant gptq validate learn"),
        ("gptq-q4_k_m", "gptq rtn validate", "gptq rtn validate"),
        ("descent-mxfp4a16", "descent validate", "descent validate learn"),
        ("imatrix-w4a16-g128", "rtn", "rtn"),
        ("rtn-w4a16-g128", "rtn", "rtn"),
        ("rtn-w8a8-static", "rtn", "rtn"),
        ("rotate-kv8", "rotate kv_cache", "rotate kv_cache"),
        ("slb-w2a16-g32", "slb", "slb"),
    ],
)
def test_calibrated_recipes_are_judged_and_at_best_learn(words: str, default: str, best: str) -> None:
    recipe = goldstick.Recipe.load(words)
    assert recipe.with_effort("fast").stages == recipe.stages
    assert stages(words, "default") == default.split()
    assert stages(words, "best") == best.split()
    goldstick.Recipe.load(recipe.with_effort("best").model_dump(mode="json"))  # it can be written as a file


@pytest.mark.parametrize(("words", "damping"), [("gptq-w4a16-g128", 0.1), ("gptq-w3a16-g32", 0.01)])
def test_a_hessian_is_damped_for_other_texts_from_4_bits_on(words: str, damping: float) -> None:
    gptq, *rest = goldstick.Recipe.load(words).with_effort("best").stages
    assert isinstance(gptq, GPTQ)
    assert (gptq.gptaq, gptq.cycles, gptq.damping) == (True, 2, damping)
    assert [type(stage) for stage in rest] == [Validate, Learn]
    descent = goldstick.Recipe.load(words.replace("gptq", "descent")).with_effort("best").stages[0]
    assert isinstance(descent, Descent)
    assert (descent.gptaq, descent.damping) == (True, damping)


@pytest.mark.parametrize(
    ("words", "default", "best"),
    [("gptq-w4a16-g128", 0.25, 0.25), ("awq-gptq-w8a16-g16", 0.25, 0.25), ("awq-w4a16-g16", 0, 0.25),
     ("smoothquant-rtn-w8a8-dynamic", 0, 0.25), ("gptq-nvfp4", 0.25, 0.25), ("gptq-w3a16-g32", 0.0625, 0),
     ("gptq-q2_k", 0.0625, 0), ("gptq-w8a8-static", 0, 0), ("rtn-w4a16-g32", 0, 0), ("imatrix-w4a16-g32", 0, 0),
     ("slb-w2a16-g32", 0, 0)],
)  # fmt: skip
def test_rows_of_tokens_by_chance_stand_for_other_texts(words: str, default: float, best: float) -> None:
    recipe = goldstick.Recipe.load(words)
    found = [recipe.with_effort(effort).calibration.random_tokens for effort in get_args(Effort)]
    assert found == [0, default, best]


def test_what_a_recipe_says_of_tokens_by_chance_stays() -> None:
    recipe = goldstick.Recipe.load({"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": {"random_tokens": 0}})
    assert recipe.with_effort("best").calibration.random_tokens == 0


@pytest.mark.parametrize(
    ("words", "clip"),
    [("awq-w4a16-g32", False), ("awq-w8a16-g16", False), ("awq-w4a16-g64", True), ("awq-w3a16-g32", True),
     ("awq-w4a16-channel", True), ("awq-gptq-w4a16-g32", True)],
)  # fmt: skip
def test_ranges_of_small_groups_are_not_clipped_for_other_texts(words: str, clip: bool) -> None:
    for effort in get_args(Effort):
        awq = goldstick.Recipe.load(words).with_effort(effort).stages[0]
        assert isinstance(awq, AWQ) and awq.clip is (clip or effort == "fast")


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("gptq-w4a16-g128", 100),
        ("gptq-nvfp4", 200),
        ("awq-w4a16-g128", 200),
        ("gptq-w3a16-g32", 600),
        ("gptq-w2a16-g64", 1000),
    ],
)
def test_the_fewer_the_bits_the_longer_codes_learn(words: str, steps: int) -> None:
    learn = goldstick.Recipe.load(words).with_effort("best").stages[-1]
    assert isinstance(learn, Learn) and learn.steps == steps


@pytest.mark.parametrize(
    ("words", "two_sided"),
    [
        ("gptq-w4a16-g128", True),
        ("gptq-w2a16-g64", True),
        ("gptq-w8a8-dynamic", True),
        ("gptq-q4_k", True),
        ("gptq-mxfp4a16", True),
        ("gptq-nvfp4", False),  # inputs of 4 bits, which only learning sees
    ],
)
def test_best_has_the_loss_at_the_end_in_view(words: str, two_sided: bool) -> None:
    gptq, *rest = goldstick.Recipe.load(words).with_effort("best").stages
    assert isinstance(gptq, GPTQ)
    assert (gptq.objective, gptq.two_sided) == (("loss", True) if two_sided else ("layer", False))
    assert all(stage.objective == "loss" for stage in rest if isinstance(stage, Learn))
    gptq, *_ = goldstick.Recipe.load(words).with_effort("default").stages
    assert isinstance(gptq, GPTQ) and gptq.objective == "layer"


def test_an_objective_that_was_asked_for_stays() -> None:
    stages = goldstick.Recipe.load({"stages": [{"gptq": {"scheme": "w4a16-g32", "objective": "output"}}]})
    gptq, *_ = stages.with_effort("best").stages
    assert isinstance(gptq, GPTQ) and (gptq.objective, gptq.two_sided) == ("output", False)


def test_an_effort_asked_for_twice_is_the_same() -> None:
    once = goldstick.Recipe.load("gptq-w4a16-g128").with_effort("best")
    assert once.with_effort("best") == once


def test_the_commands_run_words_with_default_effort_and_files_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(importlib.import_module("goldstick.cli.plan"), "show_plan", lambda plan, _: shown.append(plan))
    file = tmp_path / "mine.yaml"
    file.write_text("stages: [{gptq: {scheme: w4a16-g32}}]\n")
    for arguments, wanted in (
        (["-r", "gptq-w4a16-g32"], ["gptq", "validate"]),
        (["-r", "gptq-w4a16-g32", "--effort", "best"], ["gptq", "validate", "learn"]),
        (["-r", "gptq-w4a16-g32", "--effort", "fast"], ["gptq"]),
        (["-r", str(file), "--effort", "best"], ["gptq"]),
    ):
        done = CliRunner().invoke(main, ["plan", "reference", "--dataset", "reference", *arguments])
        assert done.exit_code == 0, done.output
        assert [stage.name for stage in shown.pop().recipe.stages] == wanted
    for share in (0, 0.5):
        CliRunner().invoke(main, ["plan", "reference", "-r", "gptq-w4a16-g32", "--random-tokens", str(share)])
        assert shown.pop().recipe.calibration.random_tokens == share
