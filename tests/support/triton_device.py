"""Where Triton's kernels are tested."""

from __future__ import annotations

import os

import pytest
import torch

from goldstick.kernels import triton


def device_of_triton() -> torch.device:
    """The CPU, for Triton's interpreter, or the GPU; a module of tests that calls this is skipped where neither runs.

    Raises:
        ImportError: Triton is missing in continuous integration, which has installed it.
    """
    missing = triton._missing()
    if missing and os.environ.get("CI"):
        raise ImportError(missing)
    if missing:
        pytest.skip(missing, allow_module_level=True)
    interpreted: bool = triton._module("tuning").interpreted
    if not interpreted and not torch.cuda.is_available():
        pytest.skip("compiled Triton kernels need a GPU: set TRITON_INTERPRET=1", allow_module_level=True)
    return torch.device("cpu" if interpreted else "cuda")
