"""The entries ``general.*`` that a model card gives a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goldstick.checkpoint.gguf.writer import gguf_package

#: Key of a card's front matter → key in ``gguf.Keys.General``.
_KEYS = {"license": "LICENSE", "license_name": "LICENSE_NAME", "license_link": "LICENSE_LINK"}


def card_metadata(card: Mapping[str, str | Sequence[str]]) -> dict[str, Any]:
    """Licence, languages and base model, as far as a card says them.

    Args:
        card: The front matter: words, or a list of words for ``language``.
    """
    general = gguf_package("GGUF files are written").Keys.General
    found: dict[str, Any] = {getattr(general, key): card[name] for name, key in _KEYS.items() if name in card}
    if languages := card.get("language"):
        found[general.LANGUAGES] = [languages] if isinstance(languages, str) else list(languages)
    base = card.get("base_model")
    if isinstance(base, str) and base:
        owner, _, name = base.rpartition("/")
        found[general.BASE_MODEL_COUNT] = 1
        found[general.BASE_MODEL_NAME.format(id=0)] = name
        if owner:
            found[general.BASE_MODEL_ORGANIZATION.format(id=0)] = owner
    return found
