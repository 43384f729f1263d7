"""Calibration data: exactly so many samples of token ids, their batches, and what the report says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from goldstick.calibration.data.random_tokens import RandomTokens
from goldstick.evaluation.batching import batches_by_length

#: Tokens that go through a block together: as fast as more on a processor, and less memory for what layers hand on.
TOKENS_PER_BATCH = 512


class CalibrationSet(Protocol):
    """Samples of any kind."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints, equal data."""

    def batches(self) -> list[dict[str, Tensor]]:
        """Keyword arguments of a model's forward."""

    def training_batches(self, samples: int) -> Callable[[int], list[dict[str, Tensor]]]:
        """A function from the number of an epoch to its batches, of ``samples`` samples each."""

    def audit(self) -> dict[str, int | float | str]:
        """What the report says of the data."""

    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the data."""


@dataclass(frozen=True, kw_only=True)
class CalibrationData:
    """Samples of token ids, and what is worth knowing of them.

    Attributes:
        ids: int64 [samples, seq_len].
        mask: bool [samples, seq_len], false on padding, which is to the right of a row's tokens; ``None`` where every
            position is a token.
        dataset: Where they come from.
        available: Samples the data would have given.
        asked: Samples the recipe asked for.
        blank_rows: Rows without a token.
        cut_rows: Samples that lost their end because they were longer than ``seq_len``.
        unknown_id: What the tokenizer writes for what it does not know; ``None`` where it knows everything.
        random: Rows of random tokens that batches hold, too; ``None`` for none.
    """

    ids: Tensor
    mask: Tensor | None = None
    dataset: str
    available: int
    asked: int
    blank_rows: int = 0
    cut_rows: int = 0
    unknown_id: int | None = None
    random: RandomTokens | None = None

    @property
    def tokens(self) -> Tensor:
        """All token ids, padding left out: int64 [tokens]."""
        return self.ids.flatten() if self.mask is None else self.ids[self.mask]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the token ids, where each sample ends, and what is drawn by chance beside them.

        Equal fingerprints, equal data.
        """
        ends = torch.full((len(self.ids),), self.ids.shape[1]) if self.mask is None else self.mask.sum(1)
        digest = hashlib.sha256(repr(tuple(self.ids.shape)).encode())
        parts = [ends, self.tokens]
        if self.random is not None:
            digest.update(repr((self.random.share, self.random.seed)).encode())
            parts.append(self.random.ordinary)
        for part in parts:
            digest.update(part.to(torch.int64).contiguous().numpy().astype("<i8", copy=False).tobytes())
        return digest.hexdigest()

    def batches(self) -> list[dict[str, Tensor]]:
        """Keyword arguments of a language model's forward, about ``TOKENS_PER_BATCH`` tokens at a time.

        Padded samples come with an ``attention_mask`` (int64, 0 on padding), longest first, those of similar length
        together, and no wider than the longest of them. Rows of random tokens are batches of their own.
        """
        batches = self._text_batches()
        return batches if self.random is None else self.random.beside(batches)

    def _text_batches(self) -> list[dict[str, Tensor]]:
        if self.mask is None:
            size = max(1, TOKENS_PER_BATCH // self.ids.shape[1])
            return [{"input_ids": self.ids[start : start + size]} for start in range(0, len(self.ids), size)]
        lengths: list[int] = self.mask.sum(1).tolist()
        return [
            {
                "input_ids": self.ids[rows, : lengths[rows[0]]],
                "attention_mask": self.mask[rows, : lengths[rows[0]]].to(torch.int64),
            }
            for rows in batches_by_length(lengths, TOKENS_PER_BATCH)
        ]

    def training_batches(self, samples: int) -> Callable[[int], list[dict[str, Tensor]]]:
        """A function from the number of an epoch to its batches, of ``samples`` samples each, for stages that train.

        The order is drawn anew for each epoch from torch's generator. What is left over at the end makes a smaller
        batch, but for a single sample, which has no other beside it and joins the batch before.
        """

        def epoch(number: int) -> list[dict[str, Tensor]]:
            parts = list(torch.split(torch.randperm(len(self.ids)), samples))
            if len(parts) > 1 and len(parts[-1]) == 1:
                parts[-2:] = [torch.cat(parts[-2:])]
            return [self._padded(part) for part in parts]

        return epoch

    def _padded(self, rows: Tensor) -> dict[str, Tensor]:
        """The keyword arguments of some samples, no wider than the longest of them."""
        if self.mask is None:
            return {"input_ids": self.ids[rows]}
        width = int(self.mask[rows].sum(1).max())
        mask = self.mask[rows, :width].to(torch.int64)
        return {"input_ids": self.ids[rows, :width], "attention_mask": mask}

    def audit(self) -> dict[str, int | float | str]:
        """What the report says of the data."""
        tokens = self.tokens
        unknown = 0 if self.unknown_id is None else int((tokens == self.unknown_id).sum())
        padded = {} if self.mask is None else {"cut_rows": self.cut_rows}
        return {
            "dataset": self.dataset,
            "samples": len(self.ids),
            **({} if self.random is None else {"random_samples": self.random.count(len(self.ids))}),
            "seq_len": self.ids.shape[1],
            "tokens": tokens.numel(),
            "windows_available": self.available,
            "distinct_tokens": torch.bincount(tokens).count_nonzero().item(),
            "unknown_tokens": unknown,
            "unknown_rate": unknown / tokens.numel(),
            "blank_rows": self.blank_rows,
            **padded,
            "fingerprint": self.fingerprint,
        }

    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the data."""
        if len(self.ids) == self.asked:
            return ()
        return (
            f"{self.dataset} gives {len(self.ids)} of the {self.asked} calibration samples that the recipe asks for; "
            "the result is calibrated on these",
        )


def count_batches(batches: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What the report says of batches that the caller made: how many, and their samples and tokens where known.

    Samples are rows of the first tensor; tokens are counted where there are ``input_ids``, without those that an
    ``attention_mask`` of the same shape leaves out.
    """
    if not batches:
        return {}
    firsts = [next((value for value in batch.values() if isinstance(value, Tensor)), None) for batch in batches]
    count = {"batches": len(batches)}
    if all(first is not None and first.ndim > 0 for first in firsts):
        count["samples"] = sum(len(first) for first in firsts if first is not None)
    ids = [batch.get("input_ids") for batch in batches]
    if all(isinstance(value, Tensor) for value in ids):
        count["tokens"] = sum(_tokens(batch) for batch in batches)
    return count


def _tokens(batch: Mapping[str, Any]) -> int:
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    counts = isinstance(mask, Tensor) and mask.shape == ids.shape
    return int(mask.bool().sum()) if counts and mask is not None else int(ids.numel())
