"""Sentence: a recipe written in one line, such as ``awq-gptq-w4a16-g128-kv8``."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldstick.core.grid import Grid
from goldstick.core.mixture import MIXTURES
from goldstick.core.scheme import BLOCK_NAMES, PRESETS, Scheme
from goldstick.errors import RecipeError
from goldstick.recipes.words import DEFAULT_METHOD, OLD_NAMES, RECOMMENDED, SLOTS, Slot, Word, grammar, vocabulary

_DOWN = "*down_proj"
_MIXED = "q4_k_m"
#: Of longer sentences no near ones are looked for, and of schemes of more words no other order.
_MOST_WORDS, _MOST_PERMUTED = 12, 4


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """What the words of a sentence say.

    Attributes:
        words: Slot → word; the ``scheme`` as :meth:`Scheme.parse` reads it.
    """

    words: dict[Slot, str]

    def recipe(self) -> dict[str, Any]:
        """The recipe as the mapping that a YAML file would hold."""
        known = vocabulary()
        chosen = {slot: known[name] for slot, name in self.words.items() if slot != "scheme"}
        stages: list[Any] = []
        for slot in SLOTS:
            if slot == "scheme" or (slot == "scaling" and "method" not in chosen):
                continue
            if slot == "method" and "scheme" in self.words:
                # AWQ rounds, too, where no method does.
                alone = dataclasses.replace(chosen["scaling"], options={}) if "scaling" in chosen else None
                stages += self._rounding(chosen.get("method") or alone or known[DEFAULT_METHOD])
            elif slot in chosen and chosen[slot].stage:
                stages.append(_stage(chosen[slot].stage, chosen[slot].options))
        scheme = [_described(self.words["scheme"])] if "scheme" in self.words else []
        titles = ", ".join(word.title for word in chosen.values())
        return {"description": "; ".join(filter(None, [*scheme, titles])), "stages": stages}

    def _rounding(self, word: Word) -> list[Any]:
        name = self.words["scheme"]
        if name in MIXTURES:
            outer = {
                "scheme": name,
                "range_search": "ggml",
                "targets": {"include": ["@embedding", "@head"]},
                "tie": "keep",
            }
            return [_stage(word.stage, _options(word, name)), _stage("rtn", outer)]
        scheme = Scheme.parse(name)
        if "mixed" not in self.words:
            return [_stage(word.stage, _options(word, name))]
        element = scheme.weight.element if scheme.weight.integers else "e4m3"
        eight = Grid(bits=8, symmetric=scheme.weight.symmetric, granularity="channel", element=element)
        at_eight = dataclasses.replace(scheme, weight=eight).label.replace("-channel", "")
        return [
            _stage(word.stage, {**_options(word, name), "targets": {"exclude": [_DOWN]}}),
            _stage(word.stage, {**_options(word, at_eight), "targets": {"include": [_DOWN]}}),
        ]


class _NoSentenceError(Exception):
    """Words are no sentence, since the one at ``place``, from 0, or their end, is wrong there."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def parse(text: str) -> Sentence:
    """Read a sentence.

    Raises:
        RecipeError: It is none; the message says which word is wrong, what was expected there, and what is near.
    """
    parts = OLD_NAMES.get(text, text).split("-")
    try:
        return _read(parts)
    except _NoSentenceError as error:
        place, why = error.place, str(error)
    where = f"word {place + 1}, {parts[place]!r}," if place < len(parts) else f"after {parts[-1]!r} it"
    expected = [word for word in _all_words() if _completed([*parts[:place], word])]
    expected += ["the end"] if place and _completed(parts[:place]) == "-".join(parts[:place]) else []
    near = _near([part.lower() for part in parts], place) if len(parts) <= _MOST_WORDS else []
    raise RecipeError(
        f"No recipe is called {text!r}: {where} {why}. Expected: {', '.join(expected)}. "
        + (f"Near it: {', '.join(near)}. " if near else "")
        + f"The order of words is {grammar()}; 'goldstick recipes list' explains it. A file ends in .yaml."
    )


def continuations(text: str) -> list[str]:
    """Recommended sentences that begin with ``text``, and ``text`` with its last word completed, for shells."""
    head, dash, tail = text.rpartition("-")
    recommended = [sentence for sentence in RECOMMENDED if sentence.startswith(text)]
    words = [
        word for word in _all_words() if word.startswith(tail) and _completed([*head.split("-")[: len(head)], word])
    ]
    return [*dict.fromkeys([*recommended, *(head + dash + word for word in words)])]


def _read(parts: Sequence[str]) -> Sentence:
    known = vocabulary()
    found: dict[Slot, str] = {}
    place = 0
    while place < len(parts):
        word = parts[place]
        text, length = (word, 1) if word in known else _leading_scheme(parts[place:])
        if not length:
            raise _NoSentenceError(place, _unknown(word, found))
        slot = known[word].slot if word in known else "scheme"
        if found and SLOTS.index(slot) <= max(map(SLOTS.index, found)):
            raise _NoSentenceError(place, f"cannot follow {[*found.values()][-1]!r}")
        if SLOTS.index(slot) > SLOTS.index("scheme") and _lacks_scheme({**found, slot: word}):
            raise _NoSentenceError(place, "needs a scheme before it")
        if slot == "mixed" and (found["scheme"] in MIXTURES or Scheme.parse(found["scheme"]).weight.superblock):
            raise _NoSentenceError(
                place, f"does not go with {found['scheme']}; {_MIXED} has more bits where they matter"
            )
        if slot == "mixed" and Scheme.parse(found["scheme"]).weight.bits == 8:
            raise _NoSentenceError(place, f"changes nothing: {found['scheme']} has 8 bits everywhere")
        found[slot] = text
        place += length
    if _lacks_scheme(found):
        raise _NoSentenceError(place, "needs a scheme")
    return Sentence(words=found)


def _lacks_scheme(found: Mapping[Slot, str]) -> bool:
    """Whether there is a word that means nothing without a scheme."""
    return "scheme" not in found and not {*found} <= {"rotation", "cache"}


def _leading_scheme(parts: Sequence[str]) -> tuple[str, int]:
    """The longest scheme that ``parts`` begin with, as :meth:`Scheme.parse` reads it; and of how many words it is."""
    if parts[0] in MIXTURES:
        return parts[0], 1
    for length in range(min(len(parts), _MOST_WORDS), 0, -1):
        first, *rest = parts[:length]
        for name in ("-".join([first, *rest]), "-".join([first, "dynamic", *rest])):  # w8a8 means w8a8-dynamic
            if Scheme.may_be(name):  # an error would look for names that are near, each time
                with contextlib.suppress(RecipeError):
                    Scheme.parse(name)
                    return name, length
    return "", 0


def _unknown(word: str, found: Mapping[Slot, str]) -> str:
    """What is wrong with a word that is none, and continues no scheme."""
    if [*found][-1:] == ["scheme"]:
        try:
            Scheme.parse(f"{found['scheme']}-{word}")
        except RecipeError as error:
            if not str(error).startswith("No scheme"):
                return f"does not continue {found['scheme']}: {str(error).rstrip('.')}"
    return "is not known here"


def _near(parts: Sequence[str], place: int) -> list[str]:
    """Sentences that differ little: in another order, with another word at ``place``, or without a word; at most 3."""
    known = vocabulary()
    scheme = [part for part in parts if part not in known]
    words = sorted((part for part in parts if part in known), key=lambda part: SLOTS.index(known[part].slot))
    before = [part for part in words if SLOTS.index(known[part].slot) < SLOTS.index("scheme")]
    orders = itertools.permutations(scheme) if len(scheme) <= _MOST_PERMUTED else ()
    changed = [[*before, *order, *words[len(before) :]] for order in orders]
    alike = difflib.get_close_matches("".join(parts[place : place + 1]), _all_words(), n=3, cutoff=0.5)
    changed += [[*parts[:place], word, *parts[place + 1 :]] for word in alike]
    changed += [[*parts[:index], *parts[index + 1 :]] for index in range(len(parts))]
    sentences = [text for one in changed if (text := _completed(one))]
    sentences += difflib.get_close_matches("-".join(parts), RECOMMENDED, n=3, cutoff=0.4)
    return [*dict.fromkeys(sentences)][:3]


def _completed(parts: Sequence[str]) -> str:
    """The sentence that ``parts`` are, or are with a scheme at the end; empty where they are none."""
    for more in ([], ["w4a16", "g128"]):
        with contextlib.suppress(_NoSentenceError):
            _read([*parts, *more])
            return "-".join([*parts, *more])
    return ""


def _all_words() -> list[str]:
    """Words of sentences, and those of the schemes that errors offer."""
    schemes = (word for name in PRESETS for word in name.split("-"))
    return [*dict.fromkeys([*vocabulary(), *schemes, *BLOCK_NAMES, *MIXTURES])]


def _stage(name: str, options: Mapping[str, Any]) -> Any:
    return {name: dict(options)} if options else name


def _options(word: Word, name: str) -> dict[str, Any]:
    """The options of the stage that rounds to the scheme ``name``."""
    if name in MIXTURES or name in BLOCK_NAMES or Scheme.parse(name).weight.superblock is not None:
        return {"scheme": name, **word.options, **word.for_blocks}
    scheme = Scheme.parse(name)
    searched = scheme.activation is None or not scheme.weight.integers
    below = word.below_8_bits if searched and scheme.weight.bits < 8 else {}
    zeros = "-asym" if word.asymmetric and scheme.weight.symmetric else ""
    grouped = scheme.weight.granularity == "group" and scheme.weight.scale is None
    narrow = {"group_size_mismatch": "smaller"} if grouped else {}
    return {"scheme": name + zeros, **word.options, **below, **narrow}


def _described(name: str) -> str:
    if name in MIXTURES:
        return f"the mixture of K-quants that llama.cpp calls {MIXTURES[name].published}"
    scheme = Scheme.parse(name)
    weight, activation = scheme.weight, scheme.activation
    if scheme.label in PRESETS and scheme.floats:
        return PRESETS[scheme.label]
    words = [
        f"{weight.bits}-bit weights",
        f"in groups of {weight.group_size}" if weight.group_size else "per output channel",
        *([] if weight.symmetric else ["with zero points"]),
    ]
    if activation is not None:
        shifted = "" if activation.symmetric else " and a zero point"
        words.append(
            f"and {activation.bits}-bit activations, "
            + ("dynamic per token" if activation.dynamic else f"one scale{shifted} per tensor")
        )
    return " ".join(words)
