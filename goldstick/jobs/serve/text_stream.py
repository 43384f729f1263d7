"""Tokens that come one by one, as text that can be shown: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: Tokens of the prompt before an answer: decoded alone, some tokenizers drop the answer's first space.
_BEFORE = 6

#: What stands for bytes that are no character yet.
_HALF = "\ufffd"


class TextStream:
    """The text of an answer, given out as soon as nothing that follows can change it.

    Args:
        decode: The text of token ids, special tokens left out.
        prompt: The tokens before the answer.
        stop: Strings before which the answer ends. What may be the beginning of one is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._ids = list(prompt[-_BEFORE:])
        self._start, self._read = 0, len(self._ids)  # decoded together; given out up to
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stopped

    def add(self, token: int) -> str:
        """The text that may be shown after one token more; nothing after a stop string."""
        if self._stopped:
            return ""
        self._ids.append(token)
        before, whole = self._decode(self._ids[self._start : self._read]), self._decode(self._ids[self._start :])
        if whole.endswith(_HALF):
            return ""
        if len(whole) > len(before):
            self._start, self._read = self._read, len(self._ids)
            self._held += whole[len(before) :]
        return self._released()

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        if self._stopped:
            return ""
        before, whole = self._decode(self._ids[self._start : self._read]), self._decode(self._ids[self._start :])
        self._held += whole[len(before) :]
        self._start = self._read = len(self._ids)
        found = self._released()
        rest, self._held = self._held, ""
        return found if self.stopped else found + rest

    def _released(self) -> str:
        places = [place for word in self._stop if (place := self._held.find(word)) >= 0]
        if places:
            self._stopped = True
            found, self._held = self._held[: min(places)], ""
            return found
        kept = max((_beginning(self._held, word) for word in self._stop), default=0)
        cut = len(self._held) - kept
        found, self._held = self._held[:cut], self._held[cut:]
        return found


def _beginning(text: str, word: str) -> int:
    """How many signs at the end of a text are the beginning of a word."""
    return next((size for size in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:size])), 0)
