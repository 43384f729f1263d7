"""Calibration data: exactly so many windows of exactly so many tokens, from a file, a known set or the hub."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.hub import HubDataset

#: Sets known by name: the parts that evaluation does not use.
KNOWN: Mapping[str, Dataset] = {
    "wikitext2": Dataset(
        name="wikitext2",
        files=("wikitext2/wiki.train.raw", "wikitext2/wiki.train.tokens"),
        hub=(HubDataset(path="Salesforce/wikitext", configuration="wikitext-2-raw-v1", split="train"),),
    ),
    "tinystories": Dataset(
        name="tinystories",
        files=("tinystories/stories.jsonl",),
        hub=(HubDataset(path="roneneldan/TinyStories", split="train"),),
    ),
    "reference": Dataset(name="reference", files=("text/calibration.txt",)),
}
#: Tokens that go through a block together.
TOKENS_PER_BATCH = 2048
_TEXT_SUFFIXES, _ROW_SUFFIXES = (".txt", ".raw", ".tokens"), (".jsonl",)


@dataclass(frozen=True, kw_only=True)
class CalibrationData:
    """Windows of tokens, and what is worth knowing of them.

    Attributes:
        ids: int64 [samples, seq_len].
        dataset: Where they come from.
        available: Windows the text would have given.
    """

    ids: Tensor
    dataset: str
    available: int

    def batches(self) -> list[dict[str, Tensor]]:
        """Keyword arguments of a language model's forward, about ``TOKENS_PER_BATCH`` tokens at a time."""
        size = max(1, TOKENS_PER_BATCH // self.ids.shape[1])
        return [{"input_ids": self.ids[start : start + size]} for start in range(0, len(self.ids), size)]

    def audit(self) -> dict[str, int | str]:
        """What the report says of the data."""
        samples, length = self.ids.shape
        return {
            "dataset": self.dataset,
            "samples": samples,
            "seq_len": length,
            "tokens": self.ids.numel(),
            "windows_available": self.available,
            "distinct_tokens": len(set(self.ids.flatten().tolist())),
        }


def read_texts(dataset: str, data_dir: Path | None) -> list[str]:
    """The texts of a data set: a ``.txt`` or ``.jsonl`` file (plain or ``.gz``), a known name, or a hub name.

    Rows of a ``.jsonl`` file have a field ``text``; where they have a ``part``, those of ``val`` or ``train`` count.

    Raises:
        DataError: There is no such file or name, or it holds no text.
    """
    path = Path(dataset)
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if dataset in KNOWN and not path.is_file():  # a folder of that name may well lie here: the data themselves
        return _texts(DataSource(data_dir), KNOWN[dataset], dataset == "tinystories")
    if plain.suffix in (*_TEXT_SUFFIXES, *_ROW_SUFFIXES) or path.exists():
        if not path.is_file():
            raise DataError(f"there is no calibration file {dataset!r}")
        local = Dataset(name=dataset, files=(glob.escape(path.name),))
        return _texts(DataSource(path.parent), local, plain.suffix in _ROW_SUFFIXES)
    if "/" not in dataset:
        raise DataError(
            f"no calibration data is called {dataset!r}: give a .txt or .jsonl file, a hub name (owner/name), or one "
            f"of {', '.join(KNOWN)}"
        )
    hub = Dataset(name=dataset, files=(), hub=(HubDataset(path=dataset, split="train"),))
    return _texts(DataSource(None), hub, rows=True)


def _texts(source: DataSource, dataset: Dataset, rows: bool) -> list[str]:
    if not rows:
        return ["".join(source.lines(dataset))]
    found = source.rows(dataset, ["text"])
    return [str(row["text"]) for row in found if row.get("part", "train") in ("train", "val")]


def pack(
    texts: Sequence[str],
    encode: Callable[[str], list[int]],
    *,
    dataset: str,
    samples: int,
    seq_len: int,
    seed: int,
) -> CalibrationData:
    """Tokenize texts one after the other, cut the stream into windows, and draw ``samples`` of them.

    Raises:
        DataError: The text gives fewer windows than asked for.
    """
    stream = [token for text in texts for token in encode(text)]
    available = len(stream) // seq_len
    if available < samples:
        raise DataError(
            f"{dataset} gives {available} windows of {seq_len} tokens and the recipe asks for {samples}: use "
            f"--samples {max(available, 1)}, a smaller --seq-len, or a longer text"
        )
    windows = torch.tensor(stream[: available * seq_len]).view(available, seq_len)
    chosen = torch.randperm(available, generator=torch.Generator().manual_seed(seed))[:samples]
    return CalibrationData(ids=windows[chosen.sort().values], dataset=dataset, available=available)
