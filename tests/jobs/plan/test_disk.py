"""What a run takes of disks: foreseen from shapes, and refused before anything takes long where it is not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from goldstick.calibration import end_gradients
from goldstick.errors import OutputError
from goldstick.jobs.plan.disk import DiskForecast, forecast_disk
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.quantize.commits import Commits
from goldstick.recipes.recipe import Recipe
from tests.support.crash_points import STAGES, run, tiny_checkpoint, write_text

TOKENS, WIDTH, BLOCKS = 2 * 16, 32, 3
STATES = 4 * TOKENS * WIDTH


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model", BLOCKS, merges=True)


def forecast(model: Path, stages: str, **export: str) -> DiskForecast:
    data = {"dataset": "text.txt", "samples": 2, "seq_len": 16}
    recipe = Recipe.load({"stages": STAGES[stages], "calibration": data, "export": export})
    return forecast_disk(make_plan(model, recipe))


def test_what_waits_on_disk_is_in_it(model: Path) -> None:
    assert forecast(model, "rtn") == DiskForecast(beside=0, temporary=0)
    assert forecast(model, "gptq") == DiskForecast(beside=2 * STATES, temporary=0)
    assert forecast(model, "gptaq-validate") == DiskForecast(beside=4 * STATES, temporary=0)
    assert forecast(model, "gptq-loss") == DiskForecast(beside=4 * STATES, temporary=(BLOCKS + 1) * STATES)
    gguf = forecast(model, "gptq as gguf", format="gguf")
    assert gguf.beside > 2 * STATES + 10_000 and gguf.temporary == 0


def test_no_sample_is_longer_than_the_context(model: Path) -> None:
    recipe = {"stages": STAGES["gptq"], "calibration": {"dataset": "text.txt", "samples": 2, "seq_len": 4096}}
    assert forecast_disk(make_plan(model, Recipe.load(recipe))).beside == 2 * STATES * 64 // 16


@pytest.mark.parametrize("stages", ["gptq", "gptaq-validate", "gptq-loss", "gptq as gguf"])
def test_a_run_asks_for_what_was_foreseen(
    stages: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(Commits, "require_space", lambda _, checkpoint, states: asked.append((checkpoint, states)))
    monkeypatch.setattr(end_gradients, "require_temporary_space", lambda nbytes, what: asked.append((0, nbytes)))
    run(model, write_text(tmp_path / "text.txt"), tmp_path / "out", stages)
    foreseen = forecast(model, stages, **({"format": "gguf"} if "gguf" in stages else {}))
    (checkpoint, states), *temporary = asked
    made = sum(file.stat().st_size for file in (tmp_path / "out").iterdir() if file.suffix in (".safetensors", ".gguf"))
    copies = 2 if "gguf" in stages else 1
    assert copies * made * 0.8 < checkpoint <= copies * made
    assert sum(nbytes for _, nbytes in temporary) == foreseen.temporary
    of_the_proof = 2 * states + checkpoint - checkpoint // copies - foreseen.beside
    assert 0 <= of_the_proof <= 2 * 4 * 128 * WIDTH


def test_where_the_disk_has_no_room_a_run_ends_before_its_first_block_and_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, told = write_text(tmp_path / "text.txt"), list[str]()
    made = make_plan(model, Recipe.load({"stages": STAGES["gptq-loss"]})).bytes_after
    disk = SimpleNamespace(free=made + 4 * STATES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)

    def attempt() -> None:
        run(model, text, tmp_path / "out", "gptq-loss", progress=lambda what, *_: told.append(what))

    said = (
        rf"what blocks are given, .*\.out\.work needs {disk.free + 1:,} bytes .* {disk.free:,} free\. Free some space"
    )
    with pytest.raises(OutputError, match=said):
        attempt()
    assert not any("calibrating" in one or "gradients" in one for one in told)
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.work").exists()
    disk.free += 1
    attempt()
    assert any("calibrating" in one for one in told)
