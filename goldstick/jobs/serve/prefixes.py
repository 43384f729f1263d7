"""Keys and values of prompts that were read, for prompts that begin alike: a system's words, a conversation so far."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from goldstick.jobs.serve.decoder import PIECE

#: More are never worth the time to compare them with a prompt.
_MOST = 64


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """Tokens, as many as some whole pieces of a prompt, and the cache that holds them."""

    ids: tuple[int, ...]
    cache: Any
    nbytes: int


class KeptPrefixes:
    """The caches used last, up to a number of bytes.

    What a cache holds is cut at places where pieces end, so whoever goes on from there does what it would have done
    after reading the tokens itself. Only tokens of prompts are kept: those of answers were computed one at a time.

    Args:
        most_bytes: Bytes of all caches; 0 keeps none.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept: list[Prefix] = []  # used last at the end

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(prefix.nbytes for prefix in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, prompt: Sequence[int]) -> tuple[int, Any]:
        """How many tokens of a prompt a cache is kept of, and a copy of it that may grow; 0 and ``None`` otherwise.

        The last token is never among them, since it must be read for what follows it.
        """
        best, length = None, 0
        for prefix in self._kept:
            found = min(_alike(prefix.ids, prompt), len(prompt) - 1) // PIECE * PIECE
            if found > length and _may_be_cut(prefix.cache, found, len(prefix.ids)):
                best, length = prefix, found
        if best is None:
            return 0, None
        self._kept.remove(best)
        self._kept.append(best)
        return length, _cut(best.cache, length, len(best.ids))

    def keep(self, ids: Sequence[int], cache: Any) -> None:
        """Keep a copy of a cache of these tokens, whole pieces of a prompt; of those that it continues none is kept."""
        if not self.most_bytes or not ids:
            return
        own = Prefix(ids=tuple(ids), cache=_cut(cache, len(ids), len(ids)), nbytes=_nbytes(cache))
        if own.nbytes > self.most_bytes:
            return
        self._kept = [prefix for prefix in self._kept if not self._stands_for(own, prefix)]
        self._kept.append(own)
        while len(self._kept) > _MOST or self.nbytes > self.most_bytes:
            del self._kept[0]

    @staticmethod
    def _stands_for(new: Prefix, old: Prefix) -> bool:
        length = len(old.ids)
        return new.ids[:length] == old.ids and _may_be_cut(new.cache, length, len(new.ids))


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens both begin."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _may_be_cut(cache: Any, tokens: int, of: int) -> bool:
    """Whether a cache still holds all it held when it had so many tokens."""
    return tokens == of or all(_holds_all(layer, of) for layer in cache.layers)


def _holds_all(layer: Any, tokens: int) -> bool:
    settings = getattr(layer, "settings", None)
    if settings is not None and settings.scheme.window:  # those were floats then, and are codes now
        return False
    return not layer.is_sliding or tokens < layer.sliding_window if hasattr(layer, "is_sliding") else True


def _cut(cache: Any, tokens: int, of: int) -> Any:
    """A copy of a cache, with its first tokens alone. Floats are shared, since nothing writes over them."""
    made = copy.copy(cache)
    made.layers = [_cut_layer(layer, tokens, of) for layer in cache.layers]
    return made


def _cut_layer(layer: Any, tokens: int, of: int) -> Any:
    if not getattr(layer, "is_initialized", False):
        return copy.copy(layer)
    if not isinstance(vars(layer).get("keys"), Tensor):  # codes, which are written into
        made = copy.deepcopy(layer)
        if tokens < of:
            made.crop(tokens - of)
        return made
    made = copy.copy(layer)
    if tokens < of:
        made.keys, made.values = layer.keys[:, :, :tokens], layer.values[:, :, :tokens]
        if hasattr(made, "cumulative_length"):
            made.cumulative_length = tokens
    return made


def _nbytes(cache: Any) -> int:
    total = 0
    for layer in cache.layers:
        held = vars(layer)
        if isinstance(held.get("keys"), Tensor):
            total += int(held["keys"].nbytes + held["values"].nbytes)
        else:
            total += int(getattr(layer, "nbytes", 0))
    return total
