"""Perplexity of a text of one's own: ``text:FILE``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.own_rows import own_rows, stamped
from goldstick.evaluation.tasks.text import perplexity_result


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Perplexity, exp(Σ NLL / Σ predicted tokens), and bits per byte of the documents in a file.

    A file of rows (``.jsonl``, ``.jsonl.gz``) holds a document in the field ``text`` of each; any other file is one
    document. Each is tokenised by itself and cut into windows of ``window`` tokens, the last one as long as it comes;
    a window is scored by itself, so that its first token is given and not predicted.

    Args:
        path: the file; UTF-8, gzip-compressed where its name ends in ``.gz``.
        window: tokens of a window; of a model with a shorter context, its context, which the protocol then says.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    path: Path
    window: int = 2048

    @property
    def name(self) -> str:
        """``text:`` and the path."""
        return f"text:{self.path}"

    @property
    def protocol(self) -> str:
        """``windows@`` and the length of a window."""
        return f"windows@{self.window}"

    def load(self, data: DataSource) -> list[str]:
        """Return the documents. Raises DataError without a file, or without a text in it."""
        if self.path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
            return [row.text("text") for row in own_rows(data, self.path, self.name)]
        text = "".join(data.lines(Dataset(name=self.name, path=self.path)))
        if not text.strip():
            raise DataError(f"{self.path}: the file holds no text")
        return [text]

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` windows."""
        texts = self.load(data)
        encoded = [language_model.encode(text) for text in texts]
        windows, protocol = self._windows(language_model, encoded, limit)
        size, tokens = sum(len(text.encode()) for text in texts), sum(map(len, encoded))
        return perplexity_result(language_model, windows, protocol, tokens, size, self.name, progress)

    def documents(
        self, language_model: LanguageModel, data: DataSource, limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        """Return the first ``limit`` windows and the protocol that made them."""
        return self._windows(language_model, [language_model.encode(text) for text in self.load(data)], limit)

    def _windows(
        self, language_model: LanguageModel, encoded: Sequence[Sequence[int]], limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        window, protocol = self.window, self.protocol
        if language_model.context_length < window:
            window = language_model.context_length
            protocol = f"windows@{window} (shortened from {self.window}: the model's context is {window})"
        windows = [ids[start : start + window] for ids in encoded for start in range(0, len(ids), window)]
        predicted = [ids for ids in windows if len(ids) > 1][:limit]
        if not predicted:
            raise DataError(f"{self.path}: no text in it has two tokens, so nothing can be predicted")
        return predicted, stamped(protocol, self.path)
