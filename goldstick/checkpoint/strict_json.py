"""JSON from a stranger: one object, in UTF-8, in which every key occurs once and every number is one that can be."""

from __future__ import annotations

import json
import re
from typing import Any

from goldstick.core.json_files import unique_keys
from goldstick.errors import FormatError

#: A text this small is always read: parsed, JSON takes up to 35 times its bytes.
ALWAYS_READ = 1_500_000
#: A larger one must be at most this part of what it describes, so that it cannot take more memory than that does.
LARGEST_PART = 20
_DEPTH_LIMIT = 40
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DIGITS = 40  # tokenizers that know no limit say int(1e30), which has 31


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object that ``data`` spells.

    Refuses what Python's parser takes and others do not: another encoding, a key given twice, NaN, half of a character
    (a lone surrogate). Refuses whole numbers of more than 40 digits and objects deeper than 40 levels, which no
    checkpoint needs.

    Raises:
        FormatError: It is anything else; the message names ``where``.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique_keys, parse_constant=_constant, parse_int=_integer
        )
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise FormatError(f"{where} cannot be read as JSON: {half!r} is half of a character.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{where} holds no JSON object.")
    if _deeper(value, _DEPTH_LIMIT):
        raise FormatError(f"{where} cannot be read as JSON: it is nested deeper than {_DEPTH_LIMIT} levels.")
    return value


def size_limit(described: int) -> int:
    """Bytes that a JSON text may have which describes ``described`` bytes."""
    return max(ALWAYS_READ, described // LARGEST_PART)


def _constant(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is no number of JSON")
    return float(name)  # some configs of transformers hold Infinity


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"the number {digits[:_DIGITS]}… has more than {_DIGITS} digits")
    return int(digits)


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(child, levels - 1) for child in children)
