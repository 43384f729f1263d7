"""A full disk and an impatient user: what was there before stays, and nothing half-made is left."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.support.interrupted_commands import contents, refused_where_files_end, wait_while_writing
from tests.support.warm_processes import command


@pytest.mark.parametrize("limit", [100_000, 2_500], ids=["in_the_weights", "in_the_small_files"])
def test_a_full_disk_leaves_the_former_output_as_it_was(pristine: Path, made: Path, tmp_path: Path, limit: int) -> None:
    output = tmp_path / "out"
    shutil.copytree(made, output)
    before = contents(tmp_path)
    scheme = "rtn-w8a16" if limit == 100_000 else "rtn-w4a16-g32"
    message = refused_where_files_end(limit, str(pristine), "-o", str(output), "--overwrite", "--recipe", scheme)
    assert "failed" in message
    assert "Free" in message
    assert "nothing that existed before was touched" in message
    assert contents(tmp_path) == before


def test_an_interrupt_leaves_nothing(pristine: Path, tmp_path: Path) -> None:
    arguments = ["quantize", str(pristine), "-o", str(tmp_path / "out"), "--recipe", "rtn-w8a16"]
    with command(wait_while_writing, *arguments) as process:
        assert process.stdout.readline() == "writing\n"
        assert [path.name for path in tmp_path.iterdir()] == [".out.work"]
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # an impatient user
            process.send_signal(number)
        _, errors = process.communicate()
    # Signals that come at once reach the main thread in any order.
    word = {130: "Interrupted", 143: "Terminated"}[process.returncode]
    assert errors.strip().splitlines()[-1] == f"{word}; nothing new was left behind."
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
