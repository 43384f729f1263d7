"""Which storage format a result gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goldstick.errors import FormatError
from goldstick.formats import FORMATS, ORDERED_COLUMNS, StorageFormat
from goldstick.formats.base import StoredLayer


def choose_format(wanted: str, layers: Sequence[StoredLayer], ties: dict[str, str]) -> tuple[StorageFormat, list[str]]:
    """The storage format for given layers, with what the user should know of it.

    Args:
        wanted: Name of a format, or ``auto``: compressed-tensors where it can hold the layers, native otherwise.
        layers: Everything quantized.
        ties: Sites that run on another's quantized weight: site → owner.

    Raises:
        FormatError: The format that was asked for cannot hold them.
    """
    storage = FORMATS["compressed-tensors" if wanted == "auto" else wanted]
    reasons = refusals(storage, layers, ties)
    if not reasons:
        return storage, storage.remarks(layers)
    if wanted != "auto":
        raise FormatError(f"{refusal_words(storage, reasons)} Use --format native, or change the recipe.")
    return FORMATS["native"], [
        "Stored in the native format, which only goldstick reads, because compressed-tensors cannot hold it: "
        f"{reasons[0]}."
    ]


def refusals(storage: StorageFormat, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> list[str]:
    """Why a format cannot hold layers, each with its name; empty where it can."""
    found = [(layer.site, _refuses_order(storage, layer) or storage.refuses(layer)) for layer in layers]
    reasons = [f"{site}: {reason}" for site, reason in found if reason]
    together = storage.refuses_together(layers, ties)
    return [*reasons, *([together] if together else [])]


def _refuses_order(storage: StorageFormat, layer: StoredLayer) -> str | None:
    if not layer.reordered or storage.name in ORDERED_COLUMNS:
        return None
    return (
        "its groups take their inputs from all over the row (act-order, a g_idx that is not in order), and "
        f"{storage.name} holds groups of consecutive inputs only"
    )


def refusal_words(storage: StorageFormat, reasons: Sequence[str]) -> str:
    """A sentence of the first reason, and how many there are."""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{storage.name} cannot hold this: {reasons[0]}{more}."
