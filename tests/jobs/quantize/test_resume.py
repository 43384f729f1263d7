"""A run that dies at any step of writing gives, gone on with, the bytes of a run that nothing disturbed."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from goldstick.checkpoint.journal import WorkDirectory
from goldstick.checkpoint.working_directory import working_directory
from goldstick.core.signals import uninterrupted
from goldstick.errors import OutputError
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.quantize import run_identity
from goldstick.recipes.recipe import Recipe
from goldstick.report.report import Report
from tests.support.crash_points import (
    STAGES,
    CrashPoints,
    Died,
    contents,
    die_and_go_on,
    run,
    steps_of,
    tiny_checkpoint,
    write_text,
)

Made = tuple[Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint of two blocks, and text."""
    folder = tmp_path_factory.mktemp("made")
    return tiny_checkpoint(folder / "source", 2), write_text(folder / "text.txt")


@pytest.fixture(scope="module")
def undisturbed(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a gptq run."""
    return steps_of(*made, tmp_path_factory.mktemp("undisturbed"), "gptq")[1]


@pytest.fixture(scope="module")
def stopped_once(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a gptq run that died when one of two blocks was finished."""
    folder = tmp_path_factory.mktemp("stopped")
    points = CrashPoints(folder, 120)
    with pytest.raises(Died), points.watching():
        run(*made, folder / "out", "gptq")
    assert WorkDirectory(folder / ".out.work").journal()["blocks_done"] == 1
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to change; the output to be made."""
    shutil.copytree(stopped_once, tmp_path / "copy")
    return tmp_path / "copy" / "out"


def test_what_an_unfinished_run_wrote_needs_no_room_again(
    made: Made, stopped: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(made[0], Recipe.load({"stages": STAGES["gptq"]}))
    states = sum(file.stat().st_size for file in working_directory(stopped).glob("hidden-*"))
    written = sum(file.stat().st_size for file in (working_directory(stopped) / "checkpoint").iterdir())
    disk = SimpleNamespace(free=plan.bytes_after - written - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    with pytest.raises(OutputError, match=rf"out needs {plan.bytes_after:,} bytes, has {written:,} of them, and the"):
        run(*made, stopped, "gptq", resume=True)
    disk.free = plan.bytes_after - written + states  # of the block behind; those of this block are there
    run(*made, stopped, "gptq", resume=True)
    assert contents(stopped) == {Path(name).name: content for name, content in undisturbed.items()}
    disk.free = 0
    assert run(*made, stopped, "gptq", resume=True).finished_before


@pytest.mark.parametrize(
    ("stages", "every"),
    [("gptq", 90), ("awq", 250), ("awq-gptq", 250), ("smoothquant-gptq-w8a8", 250), ("imatrix", 250),
     ("gptq-w8a8-static", 250), ("rotate-gptq", 250), ("rotate-online-gptq", 250), ("rotate", 250), ("gptq-kv8", 250),
     ("gptq-learn", 250), ("gptq-loss", 250), ("awq-imatrix-loss", 250),
     ("descent", 250), ("gptaq-validate", 250), ("rtn", 60)],
)  # fmt: skip
def test_dying_at_any_step_changes_no_byte(stages: str, every: int, made: Made, tmp_path: Path) -> None:
    """A few of the steps; ``make crash-test`` dies at each."""
    (tmp_path / "whole").mkdir()
    steps, expected = steps_of(*made, tmp_path / "whole", stages)
    for step in [*range(every // 2, steps, every), steps]:
        folder = tmp_path / str(step)
        folder.mkdir()
        found = die_and_go_on(*made, folder, stages, step)
        assert found == {f"out/{name}": content for name, content in expected.items()}, f"step {step} of {steps}"


def test_dying_at_any_step_of_a_file_that_is_made_of_shards_changes_no_byte(made: Made, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", 2, merges=True)
    (tmp_path / "whole").mkdir()
    steps, expected = steps_of(source, made[1], tmp_path / "whole", "gptq as gguf")
    for step in range(60, steps, 180):
        (tmp_path / str(step)).mkdir()
        found = die_and_go_on(source, made[1], tmp_path / str(step), "gptq as gguf", step)
        assert found == {f"out/{name}": content for name, content in expected.items()}, f"step {step} of {steps}"


@pytest.mark.parametrize("stages", ["gptq", "rtn"])
def test_dying_while_an_output_is_replaced_loses_neither(stages: str, made: Made, tmp_path: Path) -> None:
    """At each of the steps around the last renames there is the former output, the new one, or the way to both."""
    source, text = made
    run(source, text, tmp_path / "out", stages)
    expected = contents(tmp_path / "out")
    steps, _ = steps_of(source, text, tmp_path, stages, overwrite=True)
    renames = 28 if stages == "gptq" else 20
    for step in range(steps - renames, steps + 1, renames // 4):
        points = CrashPoints(tmp_path, step)
        with pytest.raises(Died), points.watching():
            run(source, text, tmp_path / "out", stages, overwrite=True)
        run(source, text, tmp_path / "out", stages, overwrite=True, resume=True)
        assert contents(tmp_path) == {f"out/{name}": content for name, content in expected.items()}, points.steps[-1]


def test_a_run_stopped_while_it_tidied_up_is_finished_by_the_next(made: Made, tmp_path: Path) -> None:
    steps, _ = steps_of(*made, tmp_path, "gptq", overwrite=True)
    shutil.rmtree(tmp_path / "out")
    die = CrashPoints(tmp_path, steps - 1)
    with pytest.raises(Died), die.watching():
        run(*made, tmp_path / "out", "gptq")
    before = Report.read(tmp_path / "out")
    with pytest.raises(OutputError, match="made with another recipe"):
        run(*made, tmp_path / "out", "awq", resume=True)
    with pytest.raises(OutputError, match="exists already"):
        run(*made, tmp_path / "out", "gptq")
    run(*made, tmp_path / "out", "gptq", resume=True)
    assert Report.read(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("stages", ["gptq", "rtn"])
def test_going_on_with_a_finished_run_does_nothing(stages: str, made: Made, tmp_path: Path) -> None:
    first = run(*made, tmp_path / "out", stages)
    points = CrashPoints(tmp_path, None)
    with points.watching():
        second = run(*made, tmp_path / "out", stages, resume=True)
    assert second.finished_before
    assert not first.finished_before
    assert second.report == first.report
    assert points.steps == []


def test_a_finished_run_of_something_else_is_no_reason_to_do_nothing(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, text = made
    run(source, text, tmp_path / "out", "gptq")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"exists already and was made with another recipe\. "):
        run(source, text, tmp_path / "out", "awq", resume=True)
    other = tmp_path / "text.txt"
    other.write_text(text.read_text().replace("cats", "dogs"))
    with pytest.raises(OutputError, match="made with another recipe and another calibration data"):
        run(source, other, tmp_path / "out", "gptq", resume=True)
    other.unlink()
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    (changed / "generation_config.json").write_text("{}")
    with pytest.raises(OutputError, match="made with another source"):
        run(changed, text, tmp_path / "out", "gptq", resume=True)
    shutil.rmtree(changed)
    with monkeypatch.context() as patch, pytest.raises(OutputError, match="another version of goldstick or a library"):
        patch.setattr(run_identity, "versions", lambda: {"torch": "0"})
        run(source, text, tmp_path / "out", "gptq", resume=True)
    assert contents(tmp_path) == before


def test_an_output_that_does_not_say_what_it_is_of_is_taken_for_no_finished_run(made: Made, tmp_path: Path) -> None:
    made_before = run(*made, tmp_path / "out", "gptq")
    dataclasses.replace(made_before.report, run={}).write(tmp_path / "out")
    with pytest.raises(OutputError, match="exists already"):
        run(*made, tmp_path / "out", "gptq", resume=True)
    made_before.report.write(tmp_path / "out")
    next((tmp_path / "out").glob("model-00002-*")).unlink()
    with pytest.raises(OutputError, match="exists already"):
        run(*made, tmp_path / "out", "gptq", resume=True)


def test_an_unfinished_run_is_neither_gone_on_with_nor_thrown_away_unasked(
    stopped: Path, made: Made, undisturbed: dict[str, bytes]
) -> None:
    before = contents(stopped.parent)
    with pytest.raises(OutputError, match=r"unfinished run .*--resume .* or --overwrite"):
        run(*made, stopped, "gptq")
    assert contents(stopped.parent) == before
    run(*made, stopped, "awq", overwrite=True)
    assert contents(stopped).keys() == undisturbed.keys()
    assert contents(stopped) != undisturbed
    assert [path.name for path in stopped.parent.iterdir()] == ["out"]


def test_what_is_gone_on_with_must_be_the_same(
    stopped: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, text = made
    with pytest.raises(OutputError, match=r"made with another recipe, so .*--overwrite"):
        run(source, text, stopped, "awq", resume=True)
    other = tmp_path / "text.txt"
    other.write_text(text.read_text().replace("cats", "dogs"))
    with pytest.raises(OutputError, match="another recipe and another calibration data"):
        run(source, other, stopped, "gptq", resume=True)
    changed = tmp_path / "source"
    shutil.copytree(source, changed)
    with pytest.raises(OutputError, match="made with another recipe and another source"):
        (changed / "generation_config.json").write_text("{}")
        run(changed, text, stopped, "awq", resume=True)
    monkeypatch.setattr(run_identity, "versions", lambda: {"torch": "0"})
    with pytest.raises(OutputError, match="another version of goldstick or a library"):
        run(source, text, stopped, "gptq", resume=True)


def test_calibration_data_that_changed_under_the_same_name_are_noticed(stopped: Path, made: Made) -> None:
    source, text = made
    before = text.read_text()
    try:
        text.write_text(before.replace("cats", "dogs"))
        with pytest.raises(OutputError, match="made with another calibration data, so"):
            run(source, text, stopped, "gptq", resume=True)
    finally:
        text.write_text(before)


@pytest.mark.parametrize(
    "name", ["run.json", "journal.json", "hidden-00001.safetensors", "checkpoint/model-00001-*.safetensors"]
)
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damage_is_an_error_that_names_the_file_and_the_way_out(
    name: str, damage: str, stopped: Path, made: Made
) -> None:
    (file,) = stopped.with_name(".out.work").glob(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    if damage == "missing" and name.endswith(".json"):  # then nothing was begun
        run(*made, stopped, "gptq", resume=True)
        return
    with pytest.raises(OutputError, match=rf"{file.name} .*--overwrite, without --resume") as caught:
        run(*made, stopped, "gptq", resume=True)
    assert "damaged" in str(caught.value) or "not what the unfinished run wrote" in str(caught.value) or damage != "cut"
    assert "give --resume to go on" not in " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert not stopped.exists()


def test_no_flipped_bit_of_a_journal_goes_unnoticed(stopped: Path) -> None:
    work = WorkDirectory(stopped.with_name(".out.work"))
    file = work.path / "journal.json"
    content = file.read_bytes()
    for place in range(0, len(content), 23):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        file.write_bytes(damaged)
        with pytest.raises(OutputError, match="damaged"):
            work.journal()


def test_what_lies_behind_the_journals_word_is_cut_off(
    stopped: Path, made: Made, undisturbed: dict[str, bytes]
) -> None:
    work = stopped.with_name(".out.work")
    last = max((work / "checkpoint").iterdir())
    with last.open("ab") as file:
        file.write(b"half a tensor")
    (work / "hidden-00002.safetensors").write_bytes(b"half a file")
    (work / "checkpoint" / "left.tmp").write_bytes(b"")
    run(*made, stopped, "gptq", resume=True)
    assert contents(stopped) == undisturbed


def test_only_one_run_writes_an_output(stopped: Path, made: Made) -> None:
    before = contents(stopped.parent)
    with (stopped.with_name(".out.work") / "goldstick.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(OutputError, match="Another run is writing"):
                run(*made, stopped, "gptq", **options)
    assert contents(stopped.parent) == before


def with_nan(source: Path, folder: Path, block: int) -> Path:
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"model.layers.{block}.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_an_error_before_the_first_block_leaves_nothing_and_a_later_one_what_was_done(
    made: Made, tmp_path: Path
) -> None:
    source, text = made
    out = tmp_path / "here" / "out"
    with pytest.raises(Exception, match=r"layers\.0\.mlp\.up_proj") as caught:
        run(with_nan(source, tmp_path / "first", 0), text, out, "gptq")
    assert not hasattr(caught.value, "__notes__")
    assert list(out.parent.iterdir()) == []
    with pytest.raises(Exception, match=r"layers\.1\.mlp\.up_proj") as caught:
        run(with_nan(source, tmp_path / "second", 1), text, out, "gptq")
    assert "1 finished block kept in" in caught.value.__notes__[0]
    assert [path.name for path in out.parent.iterdir()] == [".out.work"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals raise, as the command line lets them."""

    def leave(*_: Any) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handlers")
def test_a_termination_waits_for_the_end_of_a_commit(tmp_path: Path) -> None:
    work = WorkDirectory(tmp_path)
    with pytest.raises(SystemExit), uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        work.commit({"blocks_done": 3, "error": float("inf")})
    assert work.journal() == {"blocks_done": 3, "error": float("inf")}
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)


def test_a_journal_is_plain_json(stopped: Path) -> None:
    found = json.loads((stopped.with_name(".out.work") / "journal.json").read_text())
    assert set(found) == {"sha256", "content"}
    assert {"blocks_done", "hidden", "sites", "files"} == set(found["content"])
