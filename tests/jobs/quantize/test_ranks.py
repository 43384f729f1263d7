"""Several processes write the checkpoint of one, byte for byte."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.support.crash_points import contents
from tests.support.rank_jobs import RECIPES, job, made, write_sources
from tests.support.ranks import finish, start


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and text as one stream and as rows of unequal length."""
    folder = tmp_path_factory.mktemp("data")
    write_sources(folder)
    return folder


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What one process writes."""
    return made(data, tmp_path_factory.mktemp("alone"), 1)


def test_every_calibrated_recipe_gives_the_files_of_one_process(
    data: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    together = made(data, tmp_path, 2)
    for name in RECIPES:
        assert together[name] == alone[name], name
    ranks = json.loads((tmp_path / "mixture" / "report.json").read_text())["ranks"]
    assert len(ranks["work_seconds"]) == 2
    assert all(sent > 1000 for sent in ranks["sent_bytes"])  # each took part


def test_a_rank_that_is_killed_ends_the_run_and_any_number_goes_on_to_the_same_bytes(
    data: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    processes = start(2, [job(data, "awq-gptaq", output)])
    journal = tmp_path / ".out.work" / "journal.json"
    while not journal.exists() and processes[0].poll() is None:
        time.sleep(0.002)
    processes[1].send_signal(signal.SIGKILL)
    (code, errors), _ = finish(processes)
    if code:  # it may have been finished already
        assert code == 1
        assert "cannot reach the others any more" in errors
        assert "--resume" in errors
        assert not output.exists()
        assert finish(start(1, [job(data, "awq-gptaq", output, resume=True)]))[0][0] == 0
    assert contents(output) == alone["awq-gptaq"]


def test_further_formats_are_made_by_the_first_alone_when_the_others_have_ended(data: Path, tmp_path: Path) -> None:
    arguments = ["quantize", str(data / "llama"), "--recipe", "rtn-w4a16-g32", "--format", "auto", "--format", "native"]
    for count in (1, 2):
        job = {"do": "command", "arguments": [*arguments, "-o", str(tmp_path / str(count))]}
        for code, errors in finish(start(count, [job], {"GOLDSTICK_RANK_TIMEOUT": "30"})):
            assert code == 0, errors
    for name in ("", "-native"):
        assert contents(tmp_path / f"2{name}") == contents(tmp_path / f"1{name}")


def test_ranks_with_another_recipe_or_other_data_refuse_to_start_and_say_which(data: Path, tmp_path: Path) -> None:
    own = job(data, "rotate-kv8", tmp_path / "out")
    other = json.loads(json.dumps(own))
    other["recipe"]["stages"][1]["gptq"]["damping"] = 0.02
    other["recipe"]["calibration"]["samples"] = 30
    (code, errors), (second, _) = finish(start(2, [{**own, "rank 1": other}]))
    assert (code, second) == (1, 2)
    assert "rank 1 has another recipe and another calibration data than rank 0" in errors
    assert not (tmp_path / "out").exists()
