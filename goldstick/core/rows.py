"""Row chunks: work through a matrix without temporaries of the matrix's size."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

#: Elements a temporary may hold: 16 MiB in float32.
CHUNK_ELEMENTS = 4 * 2**20
#: As many times what a temporary on another device may hold, which works on few numbers as slowly as on many.
_ON_DEVICE = 32
MOST_ROWS = 1 << 16
"""Rows that :func:`finite_rows` gives at a time, at most."""


def row_chunks(matrix: Tensor, copies: int = 1, together: int = 1) -> Iterator[slice]:
    """Slices over the rows of a [rows, columns] matrix such that ``copies`` temporaries stay small together.

    All but the last have a multiple of ``together`` rows.
    """
    rows, columns = matrix.shape
    step = max(1, _elements(matrix) // max(1, columns * copies))
    step = -(-step // together) * together
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def as_rows(tensor: Tensor) -> Tensor:
    """[..., columns] as [rows, columns]."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. Neither leaves a sum, so each is looked at only where the sum is one."""
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())


def finite_rows(rows: Tensor, counts: Tensor | None = None) -> Iterator[tuple[Tensor, int]]:
    """The rows that count and are finite, and how many that count are not; some at a time.

    Args:
        rows: float [rows, columns].
        counts: Which rows count, bool [rows]; ``None`` for all.
    """
    step = max(1, min(MOST_ROWS, _elements(rows) // max(1, rows.shape[-1])))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        if counts is not None:
            chunk = chunk[counts[start : start + step]]
        if all_finite(chunk):
            yield chunk, 0
        else:
            finite = torch.isfinite(chunk).all(-1)
            yield chunk[finite], int((~finite).sum())


def _elements(tensor: Tensor) -> int:
    return CHUNK_ELEMENTS * (1 if tensor.device.type == "cpu" else _ON_DEVICE)
