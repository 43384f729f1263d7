"""Scores of an answer against references: SQuAD 1.1's official normalisation, F1 and exact match."""

from __future__ import annotations

import re
import string
from collections import Counter


def normalize(answer: str) -> str:
    """Lower case, without punctuation, articles and surplus spaces."""
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact_match(answer: str, references: list[str]) -> float:
    """1 if the answer equals a reference after normalisation, else 0."""
    return float(any(normalize(answer) == normalize(reference) for reference in references))


def f1(answer: str, references: list[str]) -> float:
    """The best harmonic mean of word precision and recall over the references."""
    return max(_f1(normalize(answer).split(), normalize(reference).split()) for reference in references)


def _f1(answer: list[str], reference: list[str]) -> float:
    shared = sum((Counter(answer) & Counter(reference)).values())
    return 2 * shared / (len(answer) + len(reference)) if shared else 0.0
