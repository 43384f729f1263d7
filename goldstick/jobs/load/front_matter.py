"""The front matter of a source's model card: what the card of what is made from it carries on."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from goldstick.recipes.strict_yaml import parse_yaml

#: What the card of a model says that holds for its compressed form as well.
CARRIED = ("license", "license_name", "license_link", "language")
_BASE = ("base_model", "base_model_relation")
_WORD_LIMIT = 500
#: Bytes of a card that are looked at; tables of scores make some front matter long.
_READ_LIMIT = 2_000_000
#: A key at the start of a line, with what belongs to it: the lines after it that are indented or begin a list's entry.
_TOP_LEVEL = re.compile(r"^[a-z_]+:[^\n]*\n(?:(?:[ -][^\n]*)?\n)*", re.MULTILINE)


def front_matter(card: Path) -> tuple[dict[str, str | list[str]], str | None]:
    """What a card's front matter, the YAML between its first two lines ``---``, says that another card carries on.

    Returns:
        Words, or a list of words for languages, by key; and what could not be read, for a warning.
    """
    try:
        with card.open("rb") as file:
            parts = file.read(_READ_LIMIT).removeprefix(BOM_UTF8).replace(b"\r\n", b"\n").split(b"---\n", 2)
        if len(parts) < 3 or parts[0]:
            return {}, None
        text = parts[1].decode()
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError) as error:
        return {}, f"{card} cannot be read ({error}), so that the new card carries nothing on."
    found: dict[str, str | list[str]] = {}
    faults: list[str] = []
    seen: set[str] = set()
    for block in _TOP_LEVEL.findall(text):
        key = block.partition(":")[0]
        if key not in (*CARRIED, *_BASE):
            continue
        if key in seen:
            return {}, f"The front matter of {card} gives {key!r} twice, so that the new card carries nothing on."
        seen.add(key)
        try:
            value = _words(key, parse_yaml(block, f"{key!r} of {card}"))
        except ValueError as error:
            faults.append(str(error))
            continue
        if value is not None:
            found[key] = value
    return found, f"{' '.join(faults)} The new card does not carry it on." if faults else None


def card_remarks(directory: Path) -> list[str]:
    """What the user should know of the card in a directory: what of it cannot be read."""
    _, fault = front_matter(directory / "README.md")
    return [fault] if fault else []


def _words(key: str, table: Any) -> str | list[str] | None:
    """The value of one key where it is a word, or words for languages; ``None`` where there is none."""
    value = table.get(key) if isinstance(table, dict) else None
    listed = value if isinstance(value, list) and key == "language" else [value]
    if value is None or not listed:
        return None
    if not all(isinstance(word, str) and 0 < len(word) <= _WORD_LIMIT and word.isprintable() for word in listed):
        raise ValueError(f"{key!r} in the front matter of the source's card is no plain text.")
    return value  # type: ignore[no-any-return]
