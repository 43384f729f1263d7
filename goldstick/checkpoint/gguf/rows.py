"""Orders in which GGUF files hold the rows of a matrix: row k of the file is row ``order[k]`` of the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: (rows, heads, key-value heads) → order, int64 [rows]; ValueError where the rows do not divide into heads.
RowOrder = Callable[[int, int, int], Tensor]


def query_pairs(rows: int, heads: int, kv_heads: int) -> Tensor:
    """Of every query head, neighbouring rows of a pair beside each other; see :func:`pairs`."""
    return pairs(rows, heads)


def key_pairs(rows: int, heads: int, kv_heads: int) -> Tensor:
    """The same of every key-value head."""
    return pairs(rows, kv_heads)


def pairs(rows: int, heads: int) -> Tensor:
    """Rows of each head from two halves, [heads, 2, half], to pairs, [heads, half, 2].

    transformers rotates the two halves of a head against each other, ggml's ``llama`` neighbouring rows.

    Raises:
        ValueError: There is no such number of rows.
    """
    if rows % (2 * heads):
        raise ValueError(f"do not divide into {heads} heads")
    return torch.arange(rows).reshape(heads, 2, -1).transpose(1, 2).flatten()


def grouped_heads(rows: int, heads: int, kv_heads: int) -> Tensor:
    """All queries, all keys, all values, from groups of queries with the key and value that they share.

    Raises:
        ValueError: There is no such number of rows.
    """
    if heads % kv_heads or rows % (heads + 2 * kv_heads):
        raise ValueError(f"do not divide into {heads} heads and {kv_heads} key-value heads")
    groups = torch.arange(rows).reshape(kv_heads, heads // kv_heads + 2, -1)  # [groups, q … q k v, width]
    return torch.cat([groups[:, :-2].flatten(), groups[:, -2].flatten(), groups[:, -1].flatten()])
