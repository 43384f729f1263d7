"""A few architectures of every kind, for the test suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tools.zoo.catalogue import Architecture

_OF_EACH_KIND = 9


def a_few(herd: Sequence[Architecture], most: int = _OF_EACH_KIND) -> list[Architecture]:
    """At most so many of every kind with a head, evenly from its whole list."""
    kinds: dict[str, list[Architecture]] = defaultdict(list)
    for one in herd:
        if one.kind != "without a head":
            kinds[one.kind].append(one)
    return [one for ones in kinds.values() for one in _spread(ones, most)]


def _spread(ones: list[Architecture], most: int) -> list[Architecture]:
    if len(ones) <= most:
        return ones
    return [ones[index * len(ones) // most] for index in range(most)]
