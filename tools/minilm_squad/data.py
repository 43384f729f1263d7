"""SQuAD questions as windows of tokens with the answer's first and last token, in batches of like length."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

#: Batches whose windows are sorted by length together: many, and batches hold little padding; few, and they mix well.
_SORTED_TOGETHER = 40


@dataclass(frozen=True, kw_only=True)
class Window:
    """A question and a part of its paragraph.

    Attributes:
        ids: Token ids, ``[CLS] question [SEP] part of the paragraph [SEP]``.
        types: 0 for the question's tokens, 1 for the paragraph's.
        start: The answer's first token; 0, ``[CLS]``, where the answer is not wholly in this part.
        end: Its last token, included; 0 likewise.
    """

    ids: Sequence[int]
    types: Sequence[int]
    start: int
    end: int


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Return {question, context, start, text} of each question of an official JSON file, its first answer."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return [
        {
            "question": question["question"].strip(),
            "context": paragraph["context"],
            "start": question["answers"][0]["answer_start"],
            "text": question["answers"][0]["text"],
        }
        for article in document["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def make_windows(tokenizer: Any, questions: Sequence[dict[str, Any]], length: int, overlap: int) -> list[Window]:
    """Cut each paragraph into windows of ``length`` tokens that share ``overlap``, and find the answer in each."""
    encoded = tokenizer(
        [question["question"] for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=length,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    for row, owner in enumerate(encoded["overflow_to_sample_mapping"]):
        types, offsets = encoded["token_type_ids"][row], encoded["offset_mapping"][row]
        inside = [t for t, kind in enumerate(types) if kind == 1 and offsets[t][1] > offsets[t][0]]
        start, end = _answer_tokens(questions[owner], inside, offsets)
        windows.append(Window(ids=encoded["input_ids"][row], types=types, start=start, end=end))
    return windows


def _answer_tokens(
    question: dict[str, Any], inside: Sequence[int], offsets: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    first, last = question["start"], question["start"] + len(question["text"])
    if not inside or offsets[inside[0]][0] > first or offsets[inside[-1]][1] < last:
        return 0, 0
    start = max(t for t in inside if offsets[t][0] <= first)
    end = min(t for t in inside if offsets[t][1] >= last)
    return (start, end) if start <= end else (0, 0)


def batches(windows: Sequence[Window], size: int, seed: int) -> Iterator[list[Window]]:
    """Yield every window once, in batches of like length; order and batches depend on nothing but the arguments."""
    random = Random(seed)
    order = random.sample(range(len(windows)), len(windows))
    cut: list[list[Window]] = []
    for begin in range(0, len(order), size * _SORTED_TOGETHER):
        together = sorted(order[begin : begin + size * _SORTED_TOGETHER], key=lambda i: len(windows[i].ids))
        cut += [[windows[i] for i in together[k : k + size]] for k in range(0, len(together), size)]
    random.shuffle(cut)
    yield from cut


def collate(rows: Sequence[Window], pad_id: int) -> dict[str, Tensor]:
    """Pad to the longest; int64 [rows, longest], and [rows] for the answers."""
    longest = max(len(row.ids) for row in rows)

    def padded(values: Sequence[Sequence[int]], filler: int) -> Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in values])

    return {
        "input_ids": padded([row.ids for row in rows], pad_id),
        "token_type_ids": padded([row.types for row in rows], 0),
        "attention_mask": padded([[1] * len(row.ids) for row in rows], 0),
        "start_positions": torch.tensor([row.start for row in rows]),
        "end_positions": torch.tensor([row.end for row in rows]),
    }
