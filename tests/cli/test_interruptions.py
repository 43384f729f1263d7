"""A full disk and an impatient user: what was there before stays, and nothing half-made is left."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.interrupted_commands import contents, refused_where_files_end

#: The command line, stopped in the middle of writing until the test has sent its signal.
WAITING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
from goldstick.checkpoint import safetensors_file
write = safetensors_file.SafetensorsWriter.write
def write_and_wait(self, name, tensor):
    write(self, name, tensor)
    print("writing", flush=True)
    time.sleep(60)
safetensors_file.SafetensorsWriter.write = write_and_wait
from goldstick.cli import main
main(sys.argv[1:])
"""


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
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert [path.name for path in tmp_path.iterdir()] == [".out.work"]
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # an impatient user
            process.send_signal(number)
        _, errors = process.communicate(timeout=50)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "Interrupted; nothing new was left behind."
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
