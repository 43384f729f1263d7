"""Metrics, and how far to trust them: pure functions on numbers and strings."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from goldstick.errors import UsageError

RESAMPLES = 1000


def exponential(value: float) -> float:
    """Return exp(value), infinite where a float cannot hold it."""
    return math.exp(value) if value < 709.0 else math.inf


def perplexity(nll: Sequence[float], tokens: Sequence[int]) -> float:
    """Return exp(Σ nll / Σ tokens); ``nll`` in nats, summed over each document's predicted ``tokens``."""
    return exponential(math.fsum(nll) / sum(tokens))


def bits_per_byte(nll: Sequence[float], tokens: Sequence[int], text_tokens: int, text_bytes: int) -> float:
    """Return the mean bits per token times the tokens per byte of the text the documents were cut from.

    The ratio ``text_tokens / text_bytes`` is that of the whole text, so that a window which begins inside a
    character needs no convention of its own. Unlike perplexity the figure compares between tokenizers.
    """
    return math.fsum(nll) / sum(tokens) / math.log(2.0) * text_tokens / text_bytes


def normalize_squad(text: str) -> str:
    """Return ``text`` as the official SQuAD script compares it (arXiv:1606.05250, evaluate-v1.1).

    Lower case, then without ASCII punctuation, then without the words a, an and the, then with single spaces.
    """
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 where the normalised prediction equals one of the normalised answers, else 0.0."""
    return float(any(normalize_squad(prediction) == normalize_squad(answer) for answer in answers))


def squad_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the best F1 over ``answers``, counted on the multisets of normalised words."""
    return max((_squad_f1_one(prediction, answer) for answer in answers), default=0.0)


def squad_items(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Items]:
    """``exact_match`` and ``f1`` of what was answered, beside the answers that count as right."""
    return {
        "exact_match": Items(values=[squad_exact_match(text, answers) for text, answers in pairs]),
        "f1": Items(values=[squad_f1(text, answers) for text, answers in pairs]),
    }


def _squad_f1_one(prediction: str, answer: str) -> float:
    predicted, expected = normalize_squad(prediction).split(), normalize_squad(answer).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:  # also where both are empty, as in the official script for version 1.1
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True, kw_only=True)
class Items:
    """One metric item by item: the metric is f(Σ values / Σ weights), f = exp or multiplication by ``factor``.

    Args:
        values: one number per item, such as its summed NLL or 1.0 for a right answer.
        weights: the items' weights (tokens of a document), or None where each item counts once.
        exponential: True for perplexity, False for everything else.
        factor: what the mean is multiplied by: 100 for a score in percent.

    Raises UsageError where there is no item, values or weights are not a number for each, or no weight is above 0.
    """

    values: Sequence[float]
    weights: Sequence[float] | None = None
    exponential: bool = False
    factor: float = 100.0

    def __post_init__(self) -> None:
        values, weights = np.asarray(self.values), None if self.weights is None else np.asarray(self.weights)
        if values.ndim != 1 or values.dtype.kind not in "biuf" or not len(values):
            raise UsageError(
                f"Items: values is a list with a number for each item, and not of shape {list(values.shape)} and dtype "
                f"{values.dtype}."
            )
        if weights is None:
            return
        if weights.shape != values.shape or weights.dtype.kind not in "biuf":
            raise UsageError(f"Items: weights is a list with a number for each of {len(values)} values.")
        if not (weights >= 0).all() or not weights.any():
            raise UsageError("Items: weights are 0 or more, and one of them is above 0.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Items:
        """Read what `to_dict` wrote."""
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a report."""
        weights = None if self.weights is None else np.asarray(self.weights).tolist()
        return {
            "values": np.asarray(self.values).tolist(),
            "weights": weights,
            "exponential": self.exponential,
            "factor": self.factor,
        }

    def metric(self, chosen: np.ndarray[Any, Any] | None = None) -> float:
        """Return the metric of all items, or of those whose indices are ``chosen`` (with repetition)."""
        values = np.asarray(self.values, dtype=np.float64)
        weights = np.ones_like(values) if self.weights is None else np.asarray(self.weights, dtype=np.float64)
        if chosen is not None:
            values, weights = values[chosen], weights[chosen]
        mean = float(values.sum() / weights.sum())
        return exponential(mean) if self.exponential else self.factor * mean

    def standard_error(self) -> float | None:
        """Return the metric's standard error √(Σ rᵢ²/(n−1)/n)/w̄, rᵢ = vᵢ − m·wᵢ the residuals of the ratio m.

        With equal weights this is the usual standard error of a mean. A perplexity takes the factor of its
        derivative, the perplexity itself. None for a single item.
        """
        values = np.asarray(self.values, dtype=np.float64)
        n = len(values)
        if n < 2:
            return None
        weights = np.ones(n) if self.weights is None else np.asarray(self.weights, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # one item that is infinite: the error is NaN
            residuals = values - values.sum() / weights.sum() * weights
        error = math.sqrt(float((residuals**2).sum()) / (n - 1) / n) / float(weights.mean())
        return error * (self.metric() if self.exponential else self.factor)

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % bootstrap interval of the metric, items resampled; None for a single item."""
        return bootstrap_interval(self.metric, len(self.values))


def bootstrap_interval(
    statistic: Callable[[np.ndarray[Any, Any]], float], n: int, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Return the 2.5 and 97.5 % quantiles of ``statistic`` over samples of n of n items with replacement.

    ``statistic`` receives the indices of a sample. The generator's seed is fixed: equal items, equal
    interval. None for fewer than two items, which say nothing about their spread.
    """
    if n < 2:
        return None
    generator = np.random.default_rng(0)
    samples = sorted(statistic(generator.integers(0, n, size=n)) for _ in range(resamples))
    last = len(samples) - 1  # the outer neighbours of the quantiles: never narrower, and sound with infinities
    return samples[math.floor(0.025 * last)], samples[math.ceil(0.975 * last)]


def paired_interval(after: Items, before: Items) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of metric(after) − metric(before), the same items drawn for both.

    What makes an item hard makes it hard for both models, so this is much narrower than the two intervals
    apart.
    """
    if len(after.values) != len(before.values):
        raise ValueError(f"{len(after.values)} and {len(before.values)} items cannot be paired")

    def difference(chosen: np.ndarray[Any, Any]) -> float:
        return after.metric(chosen) - before.metric(chosen)

    return bootstrap_interval(difference, len(after.values))


def uncertainty(items: Mapping[str, Items]) -> dict[str, Any]:
    """Return the part of `TaskResult.details` that says how far to trust each metric, and the items."""
    return {
        "standard_error": {name: item.standard_error() for name, item in items.items()},
        "interval_95": {
            name: None if (interval := item.interval()) is None else list(interval) for name, item in items.items()
        },
        "items": {name: item.to_dict() for name, item in items.items()},
    }
