"""A few architectures of every kind that are done in a moment, for the test suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tools.zoo.catalogue import Architecture
from tools.zoo.stages import Record

_OF_EACH_KIND = 3
#: Seconds that a model may have taken through all stages.
_SOON = 5.0


def a_few(herd: Sequence[Architecture], known: Mapping[str, Record], most: int = _OF_EACH_KIND) -> list[Architecture]:
    """At most so many of every kind with a head: of those that passed the quick stages, which took least time.

    Of a zoo of which nothing is known, the first of every kind.
    """
    kinds: dict[str, list[Architecture]] = defaultdict(list)
    for one in herd:
        record = known.get(one.name, _NEW if not known else _UNKNOWN)
        if one.kind != "without a head" and "meaning" in record["passed"] and record.get("seconds", 0) <= _SOON:
            kinds[one.kind].append(one)
    chosen = []
    for ones in kinds.values():
        chosen += sorted(ones, key=lambda one: known.get(one.name, {}).get("seconds", _LAST))[:most]
    return chosen


_UNKNOWN: Record = {"passed": []}
_NEW: Record = {"passed": ["meaning"]}
_LAST = 1e9
