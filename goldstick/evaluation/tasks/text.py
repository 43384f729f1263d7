"""Perplexity of text: in windows as GPTQ's authors measure it, and document by document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from goldstick.core.counts import counted
from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, bits_per_byte, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult


def perplexity_result(
    language_model: LanguageModel,
    documents: Sequence[Sequence[int]],
    protocol: str,
    text_tokens: int,
    text_bytes: int,
    name: str,
    progress: Progress | None,
) -> TaskResult:
    """Score token sequences, each by itself, and return exp of the mean NLL of all predicted tokens.

    Args:
        language_model: the model.
        documents: token sequences within its context; the first token of each is given, not predicted.
        protocol: what the caller did to make them.
        text_tokens: tokens of the text the documents were cut from, for bits per byte.
        text_bytes: UTF-8 bytes of that text.
        name: the description for ``progress``.
        progress: told after each batch.
    """
    advance = None if progress is None else lambda done, total: progress(name, done, total)
    scores = language_model.token_log_probabilities(documents, advance)
    nll = [-float(row.double().sum()) for row in scores]
    tokens = [len(row) for row in scores]
    per_byte = text_tokens / text_bytes / math.log(2.0)
    items = {
        "perplexity": Items(values=nll, weights=tokens, exponential=True),
        "bits_per_byte": Items(values=nll, weights=tokens, factor=per_byte),
    }
    return TaskResult(
        protocol=protocol,
        n=len(documents),
        metrics={
            "perplexity": items["perplexity"].metric(),
            "bits_per_byte": bits_per_byte(nll, tokens, text_tokens, text_bytes),
        },
        details={"tokens_predicted": sum(tokens), **uncertainty(items)},
    )


@dataclass(frozen=True, kw_only=True)
class WindowedPerplexity:
    """Perplexity as GPTQ's authors measure it (arXiv:2210.17323 and its code).

    The whole text is tokenised once and cut into windows of ``window`` tokens, a last partial one dropped;
    each window is scored by itself; perplexity = exp(mean over windows of the window's mean NLL).

    Args:
        name: the task's name.
        dataset: where the text is.
        window: tokens per window; a model with a shorter context gets windows of its own length, and the
            protocol of the result says so.
        join_lines: True to join the lines with a blank line, blank lines being empty (WikiText-2's
            convention), False to take the text as it is.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str
    dataset: Dataset
    window: int = 2048
    join_lines: bool = False

    @property
    def protocol(self) -> str:
        """``gptq@`` and the window."""
        return f"gptq@{self.window}"

    def load(self, data: DataSource) -> list[str]:
        """Return the text's lines."""
        return data.lines(self.dataset)

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` windows."""
        text = self._text(data)
        ids = language_model.encode(text)
        windows, protocol = self._windows(language_model, ids, limit)
        size = len(text.encode())
        return perplexity_result(language_model, windows, protocol, len(ids), size, self.name, progress)

    def documents(
        self, language_model: LanguageModel, data: DataSource, limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        """Return the first ``limit`` windows and the protocol that made them."""
        return self._windows(language_model, language_model.encode(self._text(data)), limit)

    def _text(self, data: DataSource) -> str:
        lines = self.load(data)
        return "\n\n".join(line if line.strip() else "" for line in lines) if self.join_lines else "".join(lines)

    def _windows(
        self, language_model: LanguageModel, ids: Sequence[int], limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        window, protocol = self.window, self.protocol
        if language_model.context_length < window:
            window = language_model.context_length
            protocol = f"gptq@{window} (shortened from {self.window}: the model's context is {window})"
        if len(ids) < window:
            raise DataError(
                f"{self.name}: the text has {counted(len(ids), 'token')} and a window takes {window}; give a longer one"
            )
        return [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)][:limit], protocol


@dataclass(frozen=True, kw_only=True)
class DocumentPerplexity:
    """Perplexity of separate documents, each from its beginning: exp(Σ NLL / Σ predicted tokens).

    Args:
        name: the task's name.
        dataset: where the rows ``{"text": …}`` are. Where rows have a ``part``, those of ``part`` are taken.
        part: the held-out part's name.
        window: each document is cut to this many tokens, or to the model's context where that is shorter.
        default_documents: how many are scored where no limit is given.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str
    dataset: Dataset
    part: str = "test"
    window: int = 256
    default_documents: int = 200

    @property
    def protocol(self) -> str:
        """``documents@`` and the length documents are cut to."""
        return f"documents@{self.window}"

    def load(self, data: DataSource) -> list[str]:
        """Return the texts of the held-out part."""
        texts = [
            str(row["text"]) for row in data.rows(self.dataset, ["text"]) if row.get("part", self.part) == self.part
        ]
        if not texts:
            raise DataError(f"{self.name}: no row's part is {self.part!r}")
        return texts

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` documents."""
        texts = self._texts(data, limit)
        encoded = [language_model.encode(text) for text in texts]
        documents, protocol = self._cut(language_model, encoded)
        size, tokens = sum(len(text.encode()) for text in texts), sum(map(len, encoded))
        return perplexity_result(language_model, documents, protocol, tokens, size, self.name, progress)

    def documents(
        self, language_model: LanguageModel, data: DataSource, limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        """Return the first ``limit`` documents as tokens and the protocol that made them."""
        return self._cut(language_model, [language_model.encode(text) for text in self._texts(data, limit)])

    def _texts(self, data: DataSource, limit: int | None) -> list[str]:
        return self.load(data)[: self.default_documents if limit is None else limit]

    def _cut(
        self, language_model: LanguageModel, encoded: Sequence[Sequence[int]]
    ) -> tuple[Sequence[Sequence[int]], str]:
        window, protocol = self.window, self.protocol
        if language_model.context_length < window:
            window = language_model.context_length
            protocol = f"documents@{window} (shortened from {self.window}: the model's context is {window})"
        documents = [ids[:window] for ids in encoded if len(ids) > 1]
        if not documents:
            raise DataError(
                f"{self.name}: none of {counted(len(encoded), 'document')} has two tokens, so nothing can be predicted"
            )
        return documents, protocol


WIKITEXT2 = WindowedPerplexity(
    name="wikitext2",
    dataset=Dataset(
        name="wikitext2",
        files=("wikitext2/wiki.test.raw",),
        hub=(HubDataset(path="Salesforce/wikitext", configuration="wikitext-2-raw-v1", split="test"),),
    ),
    join_lines=True,
)

TINYSTORIES = DocumentPerplexity(
    name="tinystories",
    dataset=Dataset(
        name="tinystories",
        files=("tinystories/stories.jsonl",),
        hub=(HubDataset(path="roneneldan/TinyStories", split="validation"),),
    ),
)

TEXT = WindowedPerplexity(name="text", dataset=Dataset(name="text", files=("text/heldout.txt",)))
