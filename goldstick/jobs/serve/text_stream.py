"""Tokens that come one by one, as text that can be shown: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: Tokens of the prompt before an answer: decoded alone, some tokenizers drop the answer's first space.
_BEFORE = 6

#: What stands for bytes that are no character yet.
HALF = "\ufffd"

#: Bytes of a character in UTF-8 at most, and so the signs at the end of a text that those to come may change.
CHARACTER = 4

#: After so many tokens without text to give out it is looked which of them are done with: else the time would grow with
#: the square of their number.
_WAITING = 16


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
        waiting = len(self._ids) - self._read
        if whole.endswith(HALF):
            if waiting % _WAITING:
                return ""
            self._pass_over_halves(before, whole)
        elif len(whole) > len(before):
            self._start, self._read = self._read, len(self._ids)
            self._held += whole[len(before) :]
        elif waiting >= _WAITING:  # tokens that have no text, such as special ones
            del self._ids[self._read : -_BEFORE]
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

    def _pass_over_halves(self, before: str, whole: str) -> None:
        """Give out halves of characters that nothing to come can complete, at a token between two of them."""
        for end in range(len(self._ids) - CHARACTER, self._read, -1):
            text = self._decode(self._ids[self._start : end])
            if len(before) < len(text) <= len(whole) - CHARACTER and whole.startswith(text):
                self._start, self._read = self._read, end
                self._held += text[len(before) :]
                return

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
