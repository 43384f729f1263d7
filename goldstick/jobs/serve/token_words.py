"""The text of single tokens, and where they begin in a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from goldstick.jobs.serve.text_stream import CHARACTER, HALF


class TokenWords:
    """What tokens say within a text. Decoded alone, many tokenizers leave out the space that a token begins with.

    Args:
        decode: The text of token ids, special tokens left out.
        before: Token ids of any text, to stand before.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int]) -> None:
        self._decode, self._before = decode, list(before)
        self._text_before = decode(before)

    def __call__(self, ids: Sequence[int]) -> str:
        """The text of token ids that stand together."""
        together = self._decode([*self._before, *ids])
        return together[len(self._text_before) :] if together.startswith(self._text_before) else self._decode(ids)


@dataclass
class Places:
    """Where tokens begin in the text that they make; of a character of several tokens all begin where it does.

    Attributes:
        reached: Signs of the tokens so far, less those of ``halves``.
        halves: Tokens at the end that are no whole character yet.
    """

    reached: int = 0
    halves: list[int] = field(default_factory=list)

    def of_next(self, token: int, word: Callable[[Sequence[int]], str]) -> int:
        """Where a token more begins, in signs from the beginning of the text."""
        place = self.reached
        self.halves.append(token)
        text = word(self.halves)
        if not text.endswith(HALF) or len(self.halves) == CHARACTER:
            self.reached += len(text)
            self.halves = []
        return place
