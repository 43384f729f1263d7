"""Caches of one sequence each, where a model expects one of several: a token of each in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from goldstick.nn.fused.block_chain import BlockState


class NotTogetherError(Exception):
    """Sequences cannot go through a block together; no cache was changed."""


class SeparateCaches:
    """Caches that decoder blocks extend by a token each, once the pass is through all blocks.

    Only blocks with a fast forward in C++ read it; any other reader is told that there is no such way.

    Args:
        caches: transformers' caches, of one sequence each, of any lengths.

    Attributes:
        written: The layers into which a token was written, which do not show it yet.
    """

    is_compileable = False

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = tuple(caches)
        self.written: list[BlockState] = []

    def __len__(self) -> int:
        return len(self.caches)

    @property
    def is_sliding(self) -> list[bool]:
        """Of each layer, whether it forgets tokens."""
        return list(self.caches[0].is_sliding)

    def get_seq_length(self, layer: int = 0) -> int:
        """Tokens of the first sequence; what a model makes of them (a mask) no block is given."""
        return int(self.caches[0].get_seq_length(layer))

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> Any:
        """As the first sequence's."""
        return self.caches[0].get_mask_sizes(*args, **kwargs)

    def get_query_offset(self, layer: int = 0) -> Any:
        """As the first sequence's."""
        return self.caches[0].get_query_offset(layer)

    def update(self, *_: Any, **__: Any) -> Any:
        """Nothing else writes into several caches.

        Raises:
            NotTogetherError: Always.
        """
        raise NotTogetherError

    def extend(self) -> None:
        """Give each cache its token, after the pass."""
        for state in self.written:
            state.room.extend()
        self.written = []


@contextmanager
def row_by_row(linears: Sequence[nn.Linear]) -> Iterator[None]:
    """Let float layers multiply one row after the other meanwhile, since several rows have other last bits."""
    before = [(linear, linear.__dict__.get("forward")) for linear in linears]
    try:
        for linear, forward in before:
            linear.__dict__["forward"] = _of_each_row(forward or linear.forward)
        yield
    finally:
        for linear, forward in before:
            linear.__dict__.pop("forward")
            if forward is not None:
                linear.__dict__["forward"] = forward


def _of_each_row(forward: Any) -> Any:
    def rows(x: Tensor) -> Tensor:
        return torch.cat([forward(row) for row in torch.split(x, 1)])

    return rows
