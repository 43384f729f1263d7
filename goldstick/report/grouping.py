"""Collapsing the records of repeated blocks: eighty equal blocks are told in one block's lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.report.report import LayerRecord


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Records alike in all but the numbers in their names.

    Args:
        name: their common name, a number that varies replaced by the numbers it takes: ``layers.[0-31].mlp``.
        records: the records, in their order.
    """

    name: str
    records: tuple[LayerRecord, ...]

    @property
    def bytes_before(self) -> int:
        """The size of all of them before."""
        return sum(record.bytes_before for record in self.records)

    @property
    def bytes_after(self) -> int:
        """The size of all of them after."""
        return sum(record.bytes_after for record in self.records)

    @property
    def sqnr_range(self) -> tuple[float, float] | None:
        """The lowest and the highest SQNR in decibels, or None where none is known."""
        known = [record.weight_sqnr_db for record in self.records if record.weight_sqnr_db is not None]
        return (min(known), max(known)) if known else None

    @property
    def max_abs_error(self) -> float | None:
        """The largest error of any value in any of them, or None where none is known."""
        known = [record.max_abs_error for record in self.records if record.max_abs_error is not None]
        return max(known, default=None)


def group_layers(layers: Sequence[LayerRecord], verbose: bool = False) -> list[LayerGroup]:
    """Return ``layers`` grouped, each group where its first record stands; one group each where ``verbose``.

    Records belong together where name (without its numbers), shape, dtype, sizes, scheme, algorithm and
    reason are equal; the errors, which always differ, become a range.
    """
    groups: dict[object, list[LayerRecord]] = {}
    for index, layer in enumerate(layers):
        alike = (
            _parts(layer.name)[0],
            layer.shape,
            layer.dtype,
            layer.bytes_before,
            layer.bytes_after,
            layer.scheme,
            layer.algorithm,
            layer.reason,
        )
        groups.setdefault(index if verbose else alike, []).append(layer)
    return [LayerGroup(name=_common_name(records), records=tuple(records)) for records in groups.values()]


def _parts(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Split ``a.0.b.1.c`` into its words, with an empty string for a number, and its numbers."""
    words = name.split(".")
    numbers = tuple(int(word) for word in words if re.fullmatch(r"[0-9]+", word))
    return tuple("" if re.fullmatch(r"[0-9]+", word) else word for word in words), numbers


def _common_name(records: Sequence[LayerRecord]) -> str:
    words, _ = _parts(records[0].name)
    columns = zip(*(_parts(record.name)[1] for record in records), strict=True)
    ranges = (_ranges(sorted(set(column))) for column in columns)
    return ".".join(word or next(ranges) for word in words)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``5`` for one number, ``[0-3,7]`` for several."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) + "]"
