"""Two models that went on from the same prompts: where their texts part, and how far apart they are at each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from goldstick.core.counts import counted
from goldstick.report.svg import lines
from goldstick.report.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """What became of one prompt.

    Args:
        prompt: the end of the prompt.
        text: what the first model made of it.
        kl: KL(p ‖ q) in nats at each of its tokens, both models having read the same text.
        first_difference: the number, from 1, of the first token that the second model would have chosen otherwise.
        first_word: that token in the first model's text.
        other_word: what the second would have chosen.
    """

    prompt: str
    text: str
    kl: tuple[float, ...]
    first_difference: int | None = None
    first_word: str | None = None
    other_word: str | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """All prompts.

    Args:
        inputs: what the prompts are, in words.
        texts: what became of each.
    """

    inputs: str
    texts: tuple[GeneratedText, ...]

    @property
    def mean_kl(self) -> list[float]:
        """The mean KL at each token, over the prompts that have one there."""
        return [math.fsum(values) / len(values) for values in self._by_position()]

    @property
    def largest_kl(self) -> list[float]:
        """The largest KL at each token."""
        return [max(values) for values in self._by_position()]

    def words(self) -> str:
        """What was found, in a sentence."""
        apart = [text.first_difference for text in self.texts if text.first_difference is not None]
        mean = self.mean_kl
        half = max(1, len(mean) // 2)
        early, late = (math.fsum(part) / max(1, len(part)) for part in (mean[:half], mean[half:]))
        trend = f"; mean KL {early:.2g} nats in the first half of the tokens, {late:.2g} in the second"
        if not apart:
            return f"The same token for token: {counted(len(self.texts), 'text')}{trend}."
        middle = sorted(apart)[len(apart) // 2]
        return (
            f"The same token for token: {len(self.texts) - len(apart)} of {counted(len(self.texts), 'text')}; the "
            f"others part at token {min(apart)} at the earliest, {middle} in the middle{trend}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ``mean_kl`` and ``largest_kl`` by token with it."""
        return asdict(self) | {"mean_kl": self.mean_kl, "largest_kl": self.largest_kl}

    def view(self) -> dict[str, Any]:
        """What a page shows: the rows of a table, and a drawing of the KL by token."""
        mean, largest = self.mean_kl, self.largest_kl
        top = max(largest, default=0.0)
        description = f"KL by token, {counted(len(mean), 'token')}: the mean and the largest, from 0 to {top:.2g} nats"
        return {
            "inputs": self.inputs,
            "words": self.words(),
            "rows": [_cells(text) for text in self.texts],
            "top": f"{top:.2g}",
            "tokens": len(mean),
            "drawing": lines([("most", largest), ("mean", mean)], top, description),
        }

    def _by_position(self) -> list[Sequence[float]]:
        longest = max((len(text.kl) for text in self.texts), default=0)
        return [[text.kl[place] for text in self.texts if len(text.kl) > place] for place in range(longest)]


def print_generation(console: Console, found: Generation) -> None:
    """Print a line for each prompt, and in a sentence what they say together."""
    columns = ("prompt ends", "<tokens", "<first difference", "first model", "second model", "<mean KL", "<largest KL")
    print_table(console, f"Both models go on from {found.inputs}", columns, [_cells(text) for text in found.texts])
    console.print(found.words(), markup=False, highlight=False, soft_wrap=True)


def _cells(text: GeneratedText) -> list[str]:
    mean = math.fsum(text.kl) / len(text.kl) if text.kl else 0.0
    return [
        repr(text.prompt[-24:]),
        str(len(text.kl)),
        "none" if text.first_difference is None else str(text.first_difference),
        "" if text.first_word is None else repr(text.first_word),
        "" if text.other_word is None else repr(text.other_word),
        f"{mean:.2e}",
        f"{max(text.kl, default=0.0):.2e}",
    ]
