"""auto-round's own format in vLLM, whose method ``inc`` reads it: by layer, as ``extra_config`` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from goldstick.formats.auto_round import AUTO_ROUND, AUTO_ROUND_AWQ
from goldstick.jobs.doctor.runtimes.runtime import (
    AMD,
    CPU,
    HARDWARE,
    NVIDIA,
    Answers,
    from_capability,
    no,
    refused,
    unread,
    yes,
)
from goldstick.jobs.doctor.runtimes.subject import Subject
from goldstick.jobs.doctor.runtimes.vllm_kernels import MARLIN_GROUPS, NO_AMD, awq


def auto_round(table: Mapping[str, Any], subject: Subject) -> Iterator[tuple[str, Answers]]:
    """What the config says of all layers, and of some."""
    extra = table.get("extra_config")
    others = extra.values() if isinstance(extra, Mapping) else ()
    parts = [table, *({**table, **part} for part in others if isinstance(part, Mapping))]
    found = {}
    for part in parts:
        bits, size, packing = part.get("bits"), part.get("group_size"), table.get("packing_format")
        if bits != 16:
            symmetric = "symmetric" if part.get("sym", True) else "asymmetric"
            found[f"auto-round of {bits} bits, groups of {size}, {symmetric}"] = _part(part, packing, subject)
    yield from found.items()


def _part(part: Mapping[str, Any], packing: object, subject: Subject) -> Answers:
    bits, size = part.get("bits"), part.get("group_size")
    if packing == AUTO_ROUND_AWQ.packing:
        return {**awq(part, subject), CPU: unread()}
    if packing != AUTO_ROUND.packing:
        return dict.fromkeys(HARDWARE, unread())
    if bits not in range(2, 9) or part.get("sym", True) is not True:
        return refused("it runs them with 2 to 8 bits, symmetric")
    cpu = yes("package auto-round-lib") if bits == 4 else no("weights of 4 bits alone have a kernel for CPUs")
    if any(module.expert for module in subject.quantized):
        cpu = no("there is no kernel for experts on CPUs")
    if bits not in (4, 8):
        return {NVIDIA: from_capability("7.5", "by the slower kernels of Humming"), AMD: NO_AMD, CPU: cpu}
    if (None if size == -1 else size) in MARLIN_GROUPS:
        return {NVIDIA: from_capability("7.5"), AMD: NO_AMD, CPU: cpu}
    return {NVIDIA: no("groups have 32, 64 or 128 inputs there, or the channel's"), AMD: NO_AMD, CPU: cpu}
