"""Work without Python's garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from goldstick.core.collector import no_collection


def test_the_collector_rests_and_is_as_it_was_afterwards_also_behind_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), no_collection():
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_command_ends_without_a_last_collection() -> None:
    script = (
        "import gc, sys, atexit\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 0))\n"
        "from goldstick.cli import main\n"
        "sys.argv = ['goldstick', 'recipes', 'show', 'rtn-w8a8']\n"
        "main()\n"
    )
    # What is registered last runs first.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "frozen True"


def test_what_a_command_imports_is_not_looked_through_afterwards() -> None:
    script = (
        "import gc\n"
        "from goldstick.core.collector import end_without_collection, no_collection\n"
        "def made():\n"
        "    with no_collection():\n"
        "        return [[] for _ in range(1000)]\n"
        "kept = made()\n"
        "print(gc.get_freeze_count())\n"
        "end_without_collection()\n"
        "kept += made()\n"
        "print(gc.get_freeze_count() >= 1000)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["0", "True"]
