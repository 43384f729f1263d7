"""What a training step is made of, and the curriculum that moves from one fact per passage to six."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tools.reference_model.data import (
    Batch,
    Row,
    Writer,
    ask_row,
    check_row,
    choice_row,
    collate,
    fact_row,
    recall_row,
    text_windows,
    world_windows,
)

READING = ("check", "ask")
SKILLS = (*READING, "both", "choice", "fact", "recall")
MOST_FACTS = 6
_RAISE_AT = 0.85
_SMOOTHING = 0.95


@dataclass(kw_only=True)
class Curriculum:
    """Running accuracy per skill, and how many facts a passage may have; that is raised when reading is good.

    The two ways of reading have a level each: finding a value comes first, and yes/no questions build on it.
    """

    levels: dict[str, int] = field(default_factory=lambda: {"check": 1, "ask": 2})
    accuracy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SKILLS, 0.0))

    def observe(self, skill: str, accuracy: float) -> None:
        """Take in the accuracy of one batch."""
        self.accuracy[skill] = _SMOOTHING * self.accuracy[skill] + (1 - _SMOOTHING) * accuracy
        if skill in READING and self.accuracy[skill] > _RAISE_AT and self.levels[skill] < MOST_FACTS:
            self.levels[skill] += 1
            self.accuracy[skill] = 0.5

    def masters(self, skill: str) -> bool:
        """Whether passages of all lengths are answered well."""
        return self.levels[skill] == MOST_FACTS and self.accuracy[skill] > _RAISE_AT

    @property
    def can_read(self) -> bool:
        """Whether both ways of reading are mastered."""
        return all(self.masters(skill) for skill in READING)

    def facts(self, random: Random, skill: str) -> int:
        """Draw the number of facts of a passage: up to the level, and mostly close to it."""
        level = self.levels[skill]
        if self.masters(skill) and random.random() < 0.3:
            return random.randint(1, MOST_FACTS)
        return random.randint(max(1, level - 1), level)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"levels": dict(self.levels), "accuracy": dict(self.accuracy)}


def _recall_rows(curriculum: Curriculum) -> int:
    return 1 if curriculum.can_read else 2 if curriculum.accuracy["recall"] > 0.9 else 6


class Mixture:
    """Draws the rows of a step, all from one source of randomness, which a checkpoint keeps."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        wikitext: NDArray[np.int64],
        random: Random,
        curriculum: Curriculum,
    ) -> None:
        self.tokenizer = tokenizer
        self.wikitext = wikitext
        self.random = random
        self.curriculum = curriculum
        self._writer = Writer(tokenizer)

    def skill_rows(self) -> dict[str, list[Row]]:
        """Rows with answers, by skill: mostly reading, fewer of a skill that is learned."""
        random, writer, now = self.random, self._writer, self.curriculum
        to_check, to_ask = now.facts(random, "check"), now.facts(random, "ask")
        questions = random.choice((1, 4, 6)) if now.can_read else 4
        asks = 3 if now.masters("ask") else 4
        checks = 3 if now.can_read else 8
        both = 2 if now.can_read else 5
        knows = now.accuracy["fact"] > 0.85
        choices = 1 if not knows or now.accuracy["choice"] > 0.95 else 8
        return {
            "check": [check_row(writer, random, to_check, questions) for _ in range(checks)],
            "both": [check_row(writer, random, to_check, questions, asks=True) for _ in range(both)],
            "ask": [ask_row(writer, random, to_ask, questions) for _ in range(asks)],
            "choice": [choice_row(writer, random, random.randint(1, 4), random.randint(1, 3)) for _ in range(choices)],
            "fact": [fact_row(writer, random, 6) for _ in range(2 if knows else 3)],
            "recall": [recall_row(writer, random) for _ in range(_recall_rows(now))],
        }

    def text_batch(self) -> Batch:
        """Windows of WikiText-2 and of the micro-world, 256 tokens long or, now and then, 512."""
        windows, length = (2, 512) if self.random.random() < 0.25 else (4, 256)
        if not self.curriculum.can_read:
            windows //= 2
        of_world = self.random.choice((0, 1)) if windows == 2 else 1
        unknown = self.tokenizer.unk_token_id
        rows = text_windows(self.wikitext, self.random, windows - of_world, length, unknown)
        return collate(rows + world_windows(self.tokenizer, self.random, of_world, length))
