"""Mixtures: which block type each matrix of a language model gets, by the rules that llama.cpp's quantizer publishes.

The type of a matrix depends on what it does and on its place among those that do the same: values of attention and
down projections get more bits than others, the first and last layers more than those between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Work = Literal["value", "key", "attention output", "down", "embedding", "head", "other"]
"""What a matrix does; ``value`` where query, key and value are one matrix, too."""

When = Literal["always", "more", "first 1/8", "first 1/16", "first 2", "first 4", "shared heads"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the rules look at.

    Attributes:
        work: What the matrix does.
        index: Its number among those that do the same.
        count: How many these are.
        columns: Length of its rows.
        shared: Query heads that share a head of keys and values.
        experts: Experts of its model, 0 where it has none.
    """

    work: Work
    index: int
    count: int
    columns: int
    shared: int = 1
    experts: int = 0

    def holds(self, when: When) -> bool:
        """Whether a condition of a rule holds."""
        eighth = self.count // 8
        match when:
            case "always":
                return True
            case "more":
                late = self.index >= 7 * self.count // 8
                return self.index < eighth or late or (self.index - eighth) % 3 == 2
            case "first 1/8":
                return self.index < eighth
            case "first 1/16":
                return self.index < self.count // 16
            case "first 2":
                return self.index < 2
            case "first 4":
                return self.index < 4
            case "shared heads":
                return self.shared >= 4


Rules = tuple[tuple[When, str], ...]
"""Conditions with types; the first that holds."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A mixture of block types.

    Attributes:
        general: The type of what no rule names.
        published: What llama.cpp's quantizer calls it.
        file_type: Its number in ``general.file_type``.
        rules: What a matrix does → its rules.
        guarded: Whether attention outputs of models of eight experts get ``q5_k``.
    """

    general: str
    published: str
    file_type: int
    rules: Mapping[Work, Rules] = field(default_factory=dict)
    guarded: bool = True

    def type_of(self, place: Place) -> str | None:
        """The scheme of a matrix; ``None`` where it stays float, since no block fits its rows."""
        return _fitting(self._wanted(place), place.columns)

    def _wanted(self, place: Place) -> str:
        if place.work == "head":
            return "q6_k" if place.columns % 256 == 0 else "q8_0"
        if place.experts == 8:
            if place.work in ("value", "key"):
                return "q8_0"
            if place.work == "attention output" and self.guarded:
                return "q5_k"
        found = (kind for when, kind in self.rules.get(place.work, ()) if place.holds(when))
        return next(found, self.general)


def _fitting(kind: str, columns: int) -> str | None:
    if columns % 256 and kind in _SMALLER:
        kind = _SMALLER[kind]
    return None if columns % 32 else kind


#: What rows that are no multiple of 256 weights get instead.
_SMALLER = {
    "q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip

_MORE: Rules = (("more", "q6_k"),)
_SHARED: Rules = (("shared heads", "q5_k"),)
_EARLY: Rules = (("first 1/8", "q5_k"),)

MIXTURES: dict[str, Mixture] = {
    "q2_k_s": Mixture(
        general="q2_k", published="Q2_K_S", file_type=21, guarded=False,
        rules={"value": (("shared heads", "q4_k"),), "down": (("first 1/8", "q4_k"),)},
    ),
    "q2_k_m": Mixture(
        general="q2_k", published="Q2_K", file_type=10,
        rules={
            "value": (("shared heads", "q4_k"), ("always", "q3_k")),
            "down": (("always", "q3_k"),),
            "attention output": (("always", "q3_k"),),
        },
    ),
    "q3_k_s": Mixture(general="q3_k", published="Q3_K_S", file_type=11),
    "q3_k_m": Mixture(
        general="q3_k", published="Q3_K_M", file_type=12,
        rules={
            "value": (("first 2", "q5_k"), ("always", "q4_k")),
            "down": (("first 1/16", "q5_k"), ("always", "q4_k")),
            "attention output": (("always", "q4_k"),),
        },
    ),
    "q3_k_l": Mixture(
        general="q3_k", published="Q3_K_L", file_type=13, guarded=False,
        rules={
            "value": (("always", "q5_k"),),
            "down": (("always", "q5_k"),),
            "attention output": (("always", "q5_k"),),
        },
    ),
    "q4_k_s": Mixture(
        general="q4_k", published="Q4_K_S", file_type=14, rules={"value": (("first 4", "q5_k"),), "down": _EARLY},
    ),
    "q4_k_m": Mixture(general="q4_k", published="Q4_K_M", file_type=15, rules={"value": _MORE, "down": _MORE}),
    "q5_k_s": Mixture(general="q5_k", published="Q5_K_S", file_type=16, guarded=False),
    "q5_k_m": Mixture(
        general="q5_k", published="Q5_K_M", file_type=17, guarded=False, rules={"value": _MORE, "down": _MORE},
    ),
    "iq4_nl_m": Mixture(general="iq4_nl", published="IQ4_NL", file_type=25, rules={"value": _SHARED, "down": _EARLY}),
    "iq4_xs_m": Mixture(general="iq4_xs", published="IQ4_XS", file_type=30, rules={"value": _SHARED, "down": _EARLY}),
}  # fmt: skip
"""Mixtures by the word of a recipe."""
