"""Row chunks: work through a matrix without temporaries of the matrix's size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

#: Elements a temporary may hold: 16 MiB in float32.
CHUNK_ELEMENTS = 4 * 2**20


def row_chunks(matrix: Tensor, copies: int = 1) -> Iterator[slice]:
    """Slices over the rows of a [rows, columns] matrix such that ``copies`` temporaries stay small together."""
    rows, columns = matrix.shape
    step = max(1, CHUNK_ELEMENTS // max(1, columns * copies))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def as_rows(tensor: Tensor) -> Tensor:
    """[..., columns] as [rows, columns]."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])
