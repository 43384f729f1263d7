"""An encoder with a span head as the evaluation tasks see it: question and text in, a part of the text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from goldstick.core.ranks import Ranks
from goldstick.errors import UsageError
from goldstick.evaluation.batching import TOKENS_PER_BATCH, Advance, batches_by_length, pad
from goldstick.evaluation.forward import evaluating, forward, require_numbers
from goldstick.evaluation.tokenizer import find_context_length, read_tokenizer, tokenized, tokenizer_digest

WINDOW = 384
OVERLAP = 128
LONGEST_QUESTION = 64
LONGEST_ANSWER = 30


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A question and a part of its text: token ids, their types, and where in the text the tokens of a part lie."""

    owner: int
    ids: list[int]
    types: list[int]
    tokens: list[int]
    offsets: list[tuple[int, int]]


class SpanModel:
    """An encoder that gives every token a score as the beginning and as the end of an answer, and its tokenizer.

    Args:
        model: a module whose ``forward(input_ids, attention_mask)`` returns ``.start_logits`` and ``.end_logits``.
        tokenizer: a transformers tokenizer that knows where in a text its tokens lie (a fast one).
        window: the most tokens of a forward pass; fewer where the model's context is shorter.
        overlap: how many tokens of the text two windows share; 128 if not given, a third of a window too short for it.
        tokens_per_batch: rows times longest sequence of a batch at most.
    """

    kind: ClassVar[str] = "an encoder with a span head"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        window: int = WINDOW,
        overlap: int | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UsageError("spans need a tokenizer that knows where its tokens lie; this one has no tokenizer.json")
        self.model, self.tokenizer = model, tokenizer
        self.window = min(window, find_context_length(model, tokenizer))
        room = self.window - LONGEST_QUESTION - 8
        usual = OVERLAP if room > OVERLAP else self.window // 3
        self.overlap = usual if overlap is None else overlap
        self.tokens_per_batch = tokens_per_batch
        self.ranks = Ranks()
        if not 0 <= self.overlap < room:
            short = " The model's context is too short for it." if overlap is None else ""
            raise UsageError(
                f"windows of {self.window} tokens that share {self.overlap} leave no room beside a question of "
                f"{LONGEST_QUESTION}.{short}"
            )

    @classmethod
    def from_directory(cls, model: nn.Module, directory: Path | str, **options: Any) -> SpanModel:
        """Pair ``model`` with the tokenizer in ``directory``: no downloads, and no code of its own is run."""
        return cls(model, read_tokenizer(directory), **options)

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of what the tokenizer does."""
        return tokenizer_digest(self.tokenizer)

    def answer(self, pairs: Sequence[tuple[str, str]], advance: Advance | None = None) -> list[str]:
        """Return for each (question, text) the likeliest part of the text.

        argmax over all windows and all spans s ≤ e < s + 30 in them of start[s] + end[e], the first of equals; the text
        from the beginning of token s to the end of token e. Questions are cut to 64 tokens. As in the code of
        arXiv:1810.04805, but every span is looked at, not the pairs of the 20 best beginnings and ends. Raises
        QuantizationError for NaN.
        """
        windows = [window for owner, pair in enumerate(pairs) for window in self._windows(owner, *pair)]
        best: list[tuple[float, str]] = [(float("-inf"), "")] * len(pairs)
        found: dict[int, tuple[float, str]] = {}
        done = 0
        with evaluating(self.model):
            batches = list(batches_by_length([len(window.ids) for window in windows], self.tokens_per_batch))

            def answered(number: int) -> dict[int, tuple[float, str]]:
                nonlocal done
                batch, spans = batches[number], {}
                start, end = self._logits([windows[index] for index in batch])
                for row, index in enumerate(batch):
                    score, first, last = best_span(start[row, windows[index].tokens], end[row, windows[index].tokens])
                    offsets = windows[index].offsets
                    text = pairs[windows[index].owner][1][offsets[first][0] : offsets[last][1]]
                    spans[index] = (score, text)
                done += len(batch)
                if advance is not None:
                    advance(done * len(pairs) // len(windows), len(pairs))
                return spans

            for spans in self.ranks.each([*map(len, batches)], answered):
                found |= spans
        for index, window in enumerate(windows):  # in the order of the text, so that of equals the first is kept
            if found[index][0] > best[window.owner][0]:
                best[window.owner] = found[index]
        return [text for _, text in best]

    def _logits(self, rows: Sequence[_Window]) -> tuple[Tensor, Tensor]:
        ids, mask = pad([row.ids for row in rows], int(self.tokenizer.pad_token_id or 0))
        types, _ = pad([row.types for row in rows], 0)
        output = forward(self.model, ids, mask, token_type_ids=types)
        start, end = (require_numbers(logits).float().cpu() for logits in (output.start_logits, output.end_logits))
        return start, end

    def _windows(self, owner: int, question: str, text: str) -> list[_Window]:
        encoded = tokenized(
            self.tokenizer,
            self._cut(question),
            text,
            truncation="only_second",
            max_length=self.window,
            stride=self.overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        windows = []
        for row, ids in enumerate(encoded["input_ids"]):
            offsets, parts = encoded["offset_mapping"][row], encoded.sequence_ids(row)
            inside = [t for t, part in enumerate(parts) if part == 1 and offsets[t][1] > offsets[t][0]]
            types = encoded["token_type_ids"][row] if "token_type_ids" in encoded else [0] * len(ids)
            if inside:
                places = [tuple(offsets[t]) for t in inside]
                windows.append(_Window(owner=owner, ids=ids, types=types, tokens=inside, offsets=places))
        return windows

    def _cut(self, question: str) -> str:
        encoded = tokenized(
            self.tokenizer, question, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = encoded["offset_mapping"]
        return question if len(offsets) <= LONGEST_QUESTION else question[: offsets[LONGEST_QUESTION - 1][1]]


def best_span(start: Tensor, end: Tensor, longest: int = LONGEST_ANSWER) -> tuple[float, int, int]:
    """Return max over s ≤ e < s + ``longest`` of start[s] + end[e], and that s and e, the first of equals.

    Args:
        start: float [tokens], the scores of tokens as beginnings.
        end: float [tokens], as ends.
        longest: tokens of a span at most.
    """
    scores = start[:, None] + end[None, :]
    allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(longest - 1)
    scores = scores.masked_fill(~allowed, float("-inf"))
    place = int(scores.argmax())
    first, last = divmod(place, len(end))
    return float(scores[first, last]), first, last
