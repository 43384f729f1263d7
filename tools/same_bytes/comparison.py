"""Where two records differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

_NAMED = 5


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Cases in one record alone, names of files that differ and where, and help texts that do."""
    old, new = before["checkpoints"], after["checkpoints"]
    for case in sorted(old.keys() ^ new.keys()):
        yield f"{case}: only in {'the first' if case in old else 'the second'} record"
    differing: dict[str, list[str]] = {}
    for case in sorted(old.keys() & new.keys()):
        for name in old[case].keys() | new[case].keys():
            if old[case].get(name) != new[case].get(name):
                differing.setdefault(name, []).append(case)
    for name, cases in sorted(differing.items()):
        rest = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
        yield f"{name} differs in {', '.join(cases[:_NAMED])}{rest}"
    for command in sorted(before["help"].keys() | after["help"].keys()):
        was, is_now = (side["help"].get(command, "").splitlines() for side in (before, after))
        if was != is_now:
            yield f"{command} --help:"
            yield from difflib.unified_diff(was, is_now, lineterm="", n=0)
