"""How often a run over blocks writes down how far it is, and that it goes on from there to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from goldstick.checkpoint.hidden_states import HiddenStates
from goldstick.errors import OutputError
from goldstick.jobs.quantize import commits
from goldstick.jobs.quantize import quantize as run
from tests.support.crash_points import contents, tiny_checkpoint, write_text
from tests.support.ranks import quantize

CPU, SPECS = torch.device("cpu"), [(torch.Size([2, 3]), torch.float32)]


def keep(made: commits.Commits, number: int) -> Any:
    return made.kept(number, iter([torch.ones(2, 3)]), SPECS)


def test_on_the_processor_every_block_is_written_down(tmp_path: Path) -> None:
    made = commits.Commits(tmp_path, 0, CPU, 1 << 40)
    for number in (1, 2):
        assert isinstance(keep(made, number), HiddenStates)
        made.done(number)
    assert len([*tmp_path.iterdir()]) == 1  # those before are gone


def test_on_a_gpu_memory_holds_them_for_a_while_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "room_for_states", lambda size, device: False)
    made = commits.Commits(tmp_path, 0, torch.device("cuda"), 1 << 40)
    now += 59
    assert [*map(torch.Tensor.tolist, keep(made, 1))] == [torch.ones(2, 3).tolist()]
    now += 1
    assert isinstance(keep(made, 1), HiddenStates)
    made.done(1)
    assert isinstance(keep(made, 2), list)
    scarce = commits.Commits(tmp_path, 0, torch.device("cuda"), 1000)  # and no room on the device
    assert isinstance(keep(scarce, 2), HiddenStates)


def test_writing_takes_a_tenth_of_the_time_at_most_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "room_for_states", lambda size, device: False)

    def written(*arguments: Any) -> str:
        nonlocal now
        now += 20
        return "written"

    monkeypatch.setattr(commits, "write_hidden_states", written)
    made = commits.Commits(tmp_path, 0, torch.device("cuda"), 1 << 40)
    now += 60
    assert keep(made, 1) == "written"
    made.done(1)
    now += 179
    assert keep(made, 2) != "written"
    now += 1
    assert keep(made, 3) == "written"


@pytest.mark.parametrize("room", [True, False])
def test_states_stay_on_a_device_that_has_room(room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "room_for_states", lambda size, device: room)
    made = commits.Commits(tmp_path, 0, torch.device("cuda"), 0 if room else 1 << 40)
    there = torch.ones(2, 3, device="meta")
    there.cpu = lambda: torch.ones(2, 3)  # type: ignore[method-assign]
    (kept,) = made.kept(1, iter([there]), SPECS)
    assert kept.device.type == ("meta" if room else "cpu")


@pytest.mark.parametrize(
    ("committed", "at"), [(0, ("calibrating", 2)), (0, ("proving", 0)), (1, ("calibrating", 2)), (1, ("proving", 0))]
)
def test_a_run_that_is_stopped_behind_a_commit_goes_on_from_it_to_the_same_bytes(
    committed: int, at: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path / "model", 3)
    text = write_text(tmp_path / "text.txt")
    recipe = {
        "stages": [{"gptq": {"scheme": "w4a16-g32"}}],
        "calibration": {"dataset": str(text), "samples": 4, "seq_len": 64},
    }
    job = {"source": tmp_path / "model", "recipe": recipe, "output": tmp_path / "alone", "options": {}}
    quantize(job)

    plain = commits.Commits.kept

    def kept(made: commits.Commits, number: int, *states: Any) -> Any:
        made._wait = 0 if number == committed else 1e9
        return plain(made, number, *states)

    monkeypatch.setattr(commits.Commits, "kept", kept)
    stopped = job | {"output": tmp_path / "stopped"}

    def stop(what: str, done: int, of: int) -> None:
        if what.startswith(at[0]) and done == at[1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(stopped | {"options": {"progress": stop}})
    work = tmp_path / ".stopped.work"
    journal = work / "journal.json"
    assert committed == (json.loads(journal.read_text())["content"]["blocks_done"] if journal.exists() else 0)
    quantize(stopped | {"options": {"resume": True}})
    assert contents(tmp_path / "stopped") == contents(tmp_path / "alone")


def test_a_run_that_a_processor_began_is_not_ended_by_another_kind_of_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path / "model", 1)
    job: dict[str, Any] = {"source": tmp_path / "model", "recipe": "rtn-w4a16-g32", "output": tmp_path / "made"}
    quantize(job)
    monkeypatch.setattr(run, "find_device", lambda name: torch.device(name))
    with pytest.raises(OutputError, match="made with another kind of device"):
        quantize(job | {"options": {"device": "meta", "resume": True}})
