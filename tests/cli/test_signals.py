"""A signal ends a command through its clean-up, and those that follow do not break into that."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and what nohup runs with this
from goldstick.cli import main
@main.command()
def wait():
    try:
        os.write(1, b"started\\n")  # what is printed may be printed again where a signal interrupts that
        sys.stdin.readline()
    finally:
        print("cleaning", flush=True)
        for _ in range(3):
            print(sys.stdin.readline(), end="", flush=True)
        print("cleaned", flush=True)
IGNORED
main(["wait"])
"""
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def start(ignored: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WAITS.replace("IGNORED", ignored)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip


@pytest.mark.parametrize("first", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("more", CODES, ids=lambda number: f"then_{number.name}")
def test_further_signals_do_not_break_into_the_clean_up(first: signal.Signals, more: signal.Signals) -> None:
    with start() as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(first)
        assert process.stdout.readline() == "cleaning\n"
        for word in ("once\n", "twice\n", "thrice\n"):
            process.send_signal(more)
            process.stdin.write(word)
            assert process.stdout.readline() == word  # and so the signal was received
        assert process.stdout.readline() == "cleaned\n"
        said = process.stderr.read()
    word = "Interrupted" if first is signal.SIGINT else "Terminated"
    assert said == f"{word}; nothing new was left behind.\n"
    assert process.returncode == CODES[first]


def test_a_signal_that_the_user_has_ignored_stays_ignored() -> None:
    with start("signal.signal(signal.SIGHUP, signal.SIG_IGN)") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("go on\n1\n2\n3\n")
        assert process.stdout.read() == "cleaning\n1\n2\n3\ncleaned\n"
    assert process.returncode == 0
