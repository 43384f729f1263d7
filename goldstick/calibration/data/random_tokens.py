"""Rows of random tokens beside those of a text, so that what is fitted to the text serves other texts, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_IDS = "input_ids"
#: What a batch of text alone holds: one row for each row of ids, whatever the ids are.
_OF_TEXT = {_IDS, "attention_mask", "token_type_ids"}


@dataclass(frozen=True, kw_only=True)
class RandomTokens:
    """Further rows, copies of some of a text's, in which every ordinary token is replaced by one drawn by chance.

    Attributes:
        share: How many rows there are further, as a part of the text's; rounded to a whole number.
        ordinary: The ids to draw from, each with the same probability: int64 [tokens]. Others, which are special, stay
            where they are.
        seed: Decides which are drawn.
    """

    share: float
    ordinary: Tensor
    seed: int

    def count(self, rows: int) -> int:
        """How many rows there are beside so many of a text."""
        return int(self.share * rows + 0.5) if len(self.ordinary) else 0

    def beside(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Batches of a text, and among them, evenly, batches of further rows.

        Each stands before the batch that its rows are copies of, so that what is held out at the end is of the text.
        Batches that hold anything but text stay by themselves.

        Args:
            batches: Keyword arguments of a model's forward.
        """
        rows = sum(len(batch[_IDS]) for batch in batches) if all(map(_is_text, batches)) else 0
        count = self.count(rows)
        copied = set(((torch.arange(count) + 0.5) * rows / max(count, 1)).to(torch.int64).tolist())
        generator = torch.Generator().manual_seed(self.seed)
        found, before = [], 0
        for batch in batches:
            size = len(batch[_IDS]) if count else 0
            if chosen := [row for row in range(size) if before + row in copied]:
                found.append(self._replaced({name: value[chosen] for name, value in batch.items()}, generator))
            found.append(dict(batch))
            before += size
        return found

    def _replaced(self, rows: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        ids = rows[_IDS]
        drawn = self.ordinary[torch.randint(len(self.ordinary), ids.shape, generator=generator)]
        replaced = torch.isin(ids, self.ordinary.to(ids))
        if "attention_mask" in rows:
            replaced &= rows["attention_mask"].bool()
        return {**rows, _IDS: torch.where(replaced, drawn.to(ids), ids)}


def _is_text(batch: Mapping[str, Any]) -> bool:
    """Whether a batch holds token ids, [rows, tokens], and nothing that they would have to fit."""
    if not {_IDS} <= set(batch) <= _OF_TEXT or not all(isinstance(value, Tensor) for value in batch.values()):
        return False
    ids = batch[_IDS]
    return ids.ndim == 2 and all(value.shape == ids.shape for value in batch.values())
