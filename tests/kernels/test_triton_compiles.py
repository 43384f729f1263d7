"""The Triton kernels compile to machine code of GPUs: what the interpreter accepts, the compiler may not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from goldstick.kernels import triton

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(triton._missing() is not None, reason=str(triton._missing()))
@pytest.mark.skipif(platform.machine() != "x86_64", reason="tried with the assembler in Triton's x86-64 wheel only")
def test_every_kernel_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_compilation"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.stdout.strip() == "all compiled", found.stdout + found.stderr
