"""What goldstick finds where it is installed: libraries, compiled kernels, processors, and where results are kept."""

from __future__ import annotations

import os
from typing import Any

import torch

from goldstick.core.versions import versions
from goldstick.jobs.evaluate.cache import cache_directory
from goldstick.kernels.cpu import chosen_isa, missing_extension
from goldstick.kernels.triton import why_not_on


def surroundings() -> dict[str, Any]:
    """Versions, the compiled kernels' instructions or why there are none, threads, and devices, as plain data.

    Raises:
        UsageError: GOLDSTICK_ISA asks for what this processor does not have.
    """
    kept = cache_directory()
    return {
        "versions": versions(),
        "instructions": chosen_isa(),
        "kernels_missing": missing_extension(),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "triton_missing": why_not_on(torch.device("cuda")),
        "cache": None if kept is None else str(kept),
    }


def surroundings_in_words(found: dict[str, Any]) -> list[str]:
    """The same in lines."""
    return [
        ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        f"kernels: {found['kernels_missing'] or 'compiled, using ' + found['instructions']}",
        f"threads: {found['threads']} of {found['processors']} processors",
        f"GPU kernels: {found['triton_missing'] or 'Triton'}",
        f"results of evaluations: {found['cache'] or 'kept nowhere, since there is no home directory'}",
    ]
