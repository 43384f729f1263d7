"""Runtimes: whether a checkpoint will load and run in a program, by the rules read from that program's source."""

from __future__ import annotations

from goldstick.core.registry import Registry
from goldstick.errors import UsageError
from goldstick.jobs.doctor.runtimes.runtime import Runtime

#: Every runtime by name. Each is imported when it is asked for.
RUNTIMES: Registry[Runtime] = Registry(
    "goldstick.runtimes",
    "an instance of Runtime",
    lambda found: isinstance(found, Runtime),
    {
        "vllm": "goldstick.jobs.doctor.runtimes.vllm:VLLM",
        "sglang": "goldstick.jobs.doctor.runtimes.sglang:SGLANG",
        "transformers": "goldstick.jobs.doctor.runtimes.transformers:TRANSFORMERS",
        "llama.cpp": "goldstick.jobs.doctor.runtimes.llama_cpp:LLAMA_CPP",
    },
)


def runtime_named(name: str | None) -> Runtime | None:
    """The runtime of a name, or ``None`` for none, and for goldstick, which runs all that it writes.

    Raises:
        UsageError: There is no such runtime.
    """
    if name in (None, "goldstick"):
        return None
    if name not in RUNTIMES:
        raise UsageError(f"There is no runtime {name!r}. There are {', '.join(RUNTIMES)}.")
    return RUNTIMES[name]
