"""Sentences from the shared data: one part to calibrate on, another to measure on, with no story or article in both."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal

#: Sentences of plain words, so that what is said is what is written: no digits, no abbreviations.
_SENTENCE = re.compile(r"[A-Z][a-z]+(?:,? (?:[A-Z]?[a-z]+(?:'[a-z]+)?)){7,21}\.")
_SQUAD = {"calibration": "train_44_articles-v1.1.json.gz", "evaluation": "dev_subset-v1.1.json.gz"}

Part = Literal["calibration", "evaluation"]


def sentences(shared: Path, part: Part, count: int, seed: int = 0) -> list[str]:
    """``count`` sentences of 8 to 22 words, each once, and none of them in both parts.

    Half of them are of Wikipedia's paragraphs in SQuAD, or all that there are; the rest is of stories.
    """
    stories, articles = _pools(shared / "data", part)
    if part == "calibration":  # stories like to begin alike
        others = {sentence for pool in _pools(shared / "data", "evaluation") for sentence in pool}
        stories, articles = ([one for one in pool if one not in others] for pool in (stories, articles))
    random = Random(seed)
    few = min(count - count // 2, len(articles))
    chosen = random.sample(stories, count - few) + random.sample(articles, few)
    return random.sample(chosen, count)


def _pools(data: Path, part: Part) -> tuple[list[str], list[str]]:
    stories = _plain_sentences(_stories(data / "tinystories" / "stories.jsonl.gz", part))
    return stories, _plain_sentences(_paragraphs(data / "squad" / _SQUAD[part]))


def _plain_sentences(texts: Iterator[str]) -> list[str]:
    found = (sentence for text in texts for sentence in re.split(r"(?<=[.!?]) |\n", text))
    return list(dict.fromkeys(sentence for sentence in found if _SENTENCE.fullmatch(sentence)))


def _stories(path: Path, part: Part) -> Iterator[str]:
    wanted = "val" if part == "calibration" else "test"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["part"] == wanted:
                yield row["text"]


def _paragraphs(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            yield from (paragraph["context"] for paragraph in article["paragraphs"])
