"""Commands in a process of their own, which is cut short."""

from __future__ import annotations

import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from goldstick.checkpoint.safetensors_file import SafetensorsWriter
from goldstick.cli import main
from goldstick.jobs.quantize import by_blocks
from tests.support.warm_processes import command


def wait_while_writing(*arguments: str) -> None:
    """A command that stops in the middle of writing, says so, and waits for a signal."""
    write = SafetensorsWriter.write

    def write_and_wait(self: SafetensorsWriter, *args: Any) -> None:
        write(self, *args)
        print("writing", flush=True)
        _wait()

    SafetensorsWriter.write = write_and_wait  # type: ignore[method-assign]
    _main(arguments)


def wait_behind_a_block(*arguments: str) -> None:
    """A command that stops behind its first block, says so, and waits for a signal."""

    def wait() -> None:
        print("a block is finished", flush=True)
        _wait()

    by_blocks.return_freed_memory = wait
    _main(arguments)


def _wait() -> None:
    """Sleep for ten minutes in short spells: a signal that comes just before one waits for its end."""
    for _ in range(6000):
        time.sleep(0.1)


def _where_files_end(limit: int, *arguments: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    _main(arguments)


def _main(arguments: tuple[str, ...]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
    sys.argv[1:] = arguments
    main(list(arguments))


def refused_where_files_end(limit: int, *arguments: str) -> str:
    """What ``quantize`` says, in one line, where no file may grow beyond ``limit`` bytes."""
    process = command(_where_files_end, limit, "quantize", *arguments)
    _, said = process.communicate()
    assert process.returncode == 1, said
    assert "Traceback" not in said
    message: str = said[said.index("Error: ") :]
    assert message.count("\n") == 1
    return message


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
