"""A few architectures of every kind that are done in a moment, for the test suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tools.zoo.catalogue import Architecture
from tools.zoo.stages import Record

_OF_EACH_KIND = 9


def a_few(herd: Sequence[Architecture], known: Mapping[str, Record], most: int = _OF_EACH_KIND) -> list[Architecture]:
    """At most so many of every kind with a head: of those that ran in float the last time, which took least time.

    Whether they could be quantized is not asked. Of what was never run, the first.
    """
    kinds: dict[str, list[Architecture]] = defaultdict(list)
    for one in herd:
        if one.kind != "without a head" and "float" in known.get(one.name, {"passed": ["float"]})["passed"]:
            kinds[one.kind].append(one)
    chosen = []
    for ones in kinds.values():
        chosen += sorted(ones, key=lambda one: known.get(one.name, {}).get("seconds", 1e9))[:most]
    return chosen
