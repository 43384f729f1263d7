"""Mutations of texts: their bytes, their lines, their structure, and pieces of other texts; alike for the same dice."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.support.mutations import bytes_changed, json_changed, places

#: Pieces that a reader of some kind of text may trip over.
PIECES: tuple[bytes, ...] = (
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud800",
    b'"\\udc00\\ud800"',
    b"\\u0000",
    "\u202e\u2028\x85\u0130".encode(),
    b"9" * 5000,
    b"-1e999",
    b"1e-999",
    b"0x10",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"[" * 3000,
    b"{" * 300,
    b'{"a":' * 2000,
    b"(" * 500,
    b"- " * 500,
    b'"',
    b"'",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b"---\n",
    b"...\n",
    b"&a [*a, *a]",
    b"*a",
    b"<<: {a: 1}",
    b"!!bool x",
    b"!!int ''",
    b"!!timestamp x",
    b"!!binary =",
    b"!!python/name:os.system",
    b"? [a]: b",
    b"2024-13-45",
    b"2024-01-01 25:61:61",
    b"1:2:3:4",
    b"1_000",
    b"|\n",
    b"%YAML 9.9\n",
    b"{{ 1 / 0 }}",
    b"{% for a in range(9) %}",
    b"{% endfor %}",
    b"{{ messages }}",
    b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    b"{# ",
    b"(a+)+$",
    b"(.|[^!])" * 30,
    b"(?!",
    b"(?=a)",
    b"[[:alpha:]",
    b"{0,1000}",
    b"\\1",
    b".*" * 20,
    b"re:",
    b"../../etc/passwd",
    b"x" * 20_000,
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    10**39,
    10**400,
    0.5,
    float("inf"),
    "",
    "\ud800",
    "\0",
    "x" * 10_000,
    "re:(a+)+$",
    [],
    {},
    [[]],
    {"": {}},
    [None],
    ["a", 1, None],
    {"a": None, "1": 2},
)


def mutate_text(content: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """A text with one to four mutations; it may become any bytes.

    Args:
        content: The text.
        others: Texts that pieces may be taken from.
        dice: Decides everything.
    """
    for _ in range(dice.choice((1, 1, 1, 2, 3, 4))):
        way = dice.choice((_structure, _structure, _lines, _piece, _splice, bytes_changed))
        content = _splice(content, others, dice) if way is _splice else way(content, dice)  # type: ignore[call-arg]
    return content[:300_000]


def _structure(content: bytes, dice: random.Random) -> bytes:
    """A value of JSON changed: of the whole text, or of one of its lines."""
    lines = content.split(b"\n")
    if len(lines) > 2 and all(line.startswith(b"{") for line in lines if line):
        place = dice.randrange(len(lines))
        lines[place] = _structure(lines[place], dice)
        return b"\n".join(lines)
    if dice.random() < 0.5:
        return json_changed(content, dice)
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        return _piece(content, dice)
    found = places(table)
    if not found:
        return _piece(content, dice)
    owner, key = dice.choice(found)
    match dice.choice(("value", "value", "deep", "key", "many")):
        case "value":
            owner[key] = copy.deepcopy(dice.choice(_VALUES))
        case "deep":
            for _ in range(dice.choice((30, 300))):
                owner[key] = [owner[key]]
        case "key" if isinstance(owner, dict):
            owner[dice.choice(("", "\ud800", "a" * 1000, "__class__", "1"))] = owner[key]
        case _:
            owner[key] = [copy.deepcopy(owner[key])] * dice.choice((2, 50))
    try:
        return json.dumps(table).encode()
    except (RecursionError, ValueError):
        return content


def _lines(content: bytes, dice: random.Random) -> bytes:
    lines = content.split(b"\n")
    place, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    match dice.choice(("drop", "double", "many", "swap", "indent", "join")):
        case "drop":
            del lines[place]
        case "double":
            lines.insert(other, lines[place])
        case "many":
            lines[place:place] = [lines[place]] * dice.choice((10, 100, 1000))
        case "swap":
            lines[place], lines[other] = lines[other], lines[place]
        case "indent":
            lines[place] = b" " * dice.randrange(1, 9) + lines[place]
        case "join":
            lines[place : place + 2] = [b"".join(lines[place : place + 2])]
    return b"\n".join(lines)


def _piece(content: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(content) + 1)
    end = start + dice.choice((0, 0, 1, dice.randrange(20)))
    return content[:start] + dice.choice(PIECES) + content[end:]


def _splice(content: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    other = dice.choice(others)
    start, place = dice.randrange(len(other) + 1), dice.randrange(len(content) + 1)
    return content[:place] + other[start : start + dice.randrange(200)] + content[place + dice.randrange(50) :]
