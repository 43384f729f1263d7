"""Batches of token sequences: pure functions that decide their order and their padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

TOKENS_PER_BATCH = 4096
"""Rows times longest sequence of a batch at most, unless a model's owner says otherwise."""

Advance = Callable[[int, int], None]
"""Called as ``advance(done, total)`` after each batch, counted in the caller's sequences."""


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int, mixed: bool = True) -> Iterator[list[int]]:
    """Yield indices, longest first, in batches of ``rows x longest`` within ``tokens_per_batch``.

    A sequence longer than that is a batch alone. Equal lengths keep their order, so the batches depend on
    nothing but ``lengths``. The longest come first because memory that runs out should do so at once.
    Unless ``mixed``, a batch holds one length only and so needs no padding.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        full = bool(batch) and (len(batch) + 1) * lengths[batch[0]] > tokens_per_batch
        if full or (batch and not mixed and lengths[index] != lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad(sequences: Sequence[Sequence[int]], pad_id: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return int64 ``(ids, mask)``, both [rows, longest]; the mask is 1 on tokens and 0 on padding."""
    longest = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(sequences), longest), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        where = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, where] = torch.tensor(list(sequence), dtype=torch.int64)
        mask[row, where] = 1
    return ids, mask
