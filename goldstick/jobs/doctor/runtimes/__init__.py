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


def runtime_named(name: str | None, tensor_parallel: int) -> Runtime | None:
    """The runtime of a name, or ``None`` for none, and for goldstick, which runs all that it writes.

    Args:
        name: What it is called.
        tensor_parallel: Over how many devices it is to split the layers.

    Raises:
        UsageError: There is no such runtime, or nobody knows how it splits layers over devices.
    """
    if name not in (None, "goldstick", *RUNTIMES):
        raise UsageError(f"There is no runtime {name!r}. There are {', '.join(RUNTIMES)}.")
    found = None if name in (None, "goldstick") else RUNTIMES[name]
    if tensor_parallel < 1:
        raise UsageError(f"Layers are split over 1 device or more, not over {tensor_parallel}.")
    if tensor_parallel > 1 and (found is None or not found.splits):
        known = ", ".join(name for name in RUNTIMES if RUNTIMES[name].splits)
        for_none = "no runtime is named" if name is None else f"no rules of {name} on that are known"
        raise UsageError(
            f"Whether layers can be split over {tensor_parallel} devices is not looked at where {for_none}: name one "
            f"of {known} ('--for'), or leave the devices out ('--tensor-parallel')."
        )
    return found
