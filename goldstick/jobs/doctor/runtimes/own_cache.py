"""Quantized caches of keys and values that goldstick alone reads."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.checkpoint.kv_cache import KV_SIDECAR
from goldstick.jobs.doctor.runtimes.runtime import Rule
from goldstick.jobs.doctor.runtimes.subject import Subject


def own_cache_rule(title: str, where: str) -> Rule:
    """What a runtime makes of them.

    Args:
        title: Its name in sentences.
        where: The folder of its source in which no file reads them.
    """
    return Rule(
        check="own-cache",
        severity="remark",
        what=f"the quantized cache is one that goldstick alone knows; {title} keeps keys and values in float",
        remedy="nothing, where that is meant; otherwise load it with goldstick.load, or take a cache in FP8",
        read_in=f"{where} (no file reads '{KV_SIDECAR}')",
        find=_own_cache,
    )


def _own_cache(subject: Subject) -> Iterator[str]:
    if KV_SIDECAR in subject.files and not subject.table.get("kv_cache_scheme"):
        yield KV_SIDECAR
