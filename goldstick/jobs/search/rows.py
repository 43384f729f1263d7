"""The rows of text of a search: those it searches on, those that judge exchanges, and those that judge the result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from goldstick.calibration.data.sources import read_documents
from goldstick.jobs.load.calibration_data import home_of
from goldstick.jobs.search.shortage import searched_rows
from goldstick.recipes.calibration import Calibration

#: Tokens of a batch.
_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of token ids, [rows, tokens] each; no row is in two of them.

    Attributes:
        searched: Changes are measured on these.
        tuning: Exchanges are judged on these.
        check: What was found is judged on these.
        fingerprint: Tells them from others.
    """

    searched: Tensor
    tuning: Tensor
    check: Tensor
    fingerprint: str


def draw_rows(
    model: nn.Module, directory: Path, text: Calibration, held_out: str | None, count: int, data_dir: Path | None
) -> Rows:
    """Draw the rows. Which is which is drawn, too: parts of a text differ, and each kind of row is of all of it.

    Args:
        model: The model.
        directory: Where its tokenizer lies.
        text: The text, the number of rows to search on, their length and seed.
        held_out: Text of the rows that judge; other rows of ``text`` where ``None``.
        count: Rows that judge exchanges, and as many that judge the result.
        data_dir: Where sets of text known by name lie.

    Raises:
        DataError: The text is missing, malformed or too short.
    """

    def drawn(settings: Calibration, searched: int, judging: int) -> Tensor:
        ids = searched_rows(model, directory, settings, data_dir, searched, judging)
        return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(settings.seed))]

    ids = drawn(text, text.samples, 0 if held_out else count)
    judging = ids[text.samples :]
    if held_out:
        judging = drawn(text.model_copy(update={"dataset": held_out}), 0, count)
    rows = ids[: text.samples], judging[:count], judging[count:]
    digest = hashlib.sha256(repr([part.tolist() for part in rows]).encode()).hexdigest()
    return Rows(searched=rows[0], tuning=rows[1], check=rows[2], fingerprint=digest)


def digest_of_texts(
    text: Calibration, held_out: str | None, calibration: Calibration | None, data_dir: Path | None
) -> str:
    """What tells the texts that a search reads from others of the same names; no tokenizer is needed.

    Args:
        text: The text that is searched on.
        held_out: That of the rows that judge, where it is another.
        calibration: The data of the recipe; ``None`` where no layer looks at any.
        data_dir: Where sets of text known by name lie.

    Raises:
        DataError: One is missing or malformed.
    """
    digest = hashlib.sha256()
    read = [(text.dataset, text.text_field)]
    read += [(held_out, text.text_field)] if held_out else []
    read += [(calibration.dataset, calibration.text_field)] if calibration else []
    for dataset, text_field in dict.fromkeys(read):
        documents = read_documents(dataset, home_of(dataset, data_dir), text_field)
        digest.update(repr(len(documents)).encode())
        for document in documents:
            digest.update(repr(document.content).encode())
    return digest.hexdigest()


def in_batches(ids: Tensor) -> list[dict[str, Tensor]]:
    """Rows as keyword arguments of a forward, several at a time."""
    size = max(1, _TOKENS // ids.shape[1])
    return [{"input_ids": ids[start : start + size]} for start in range(0, len(ids), size)]
