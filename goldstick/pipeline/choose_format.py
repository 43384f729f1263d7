"""Which storage format a result gets."""

from __future__ import annotations

from collections.abc import Sequence

from goldstick.errors import FormatError
from goldstick.formats import FORMATS, StorageFormat
from goldstick.formats.base import StoredLayer


def choose_format(wanted: str, layers: Sequence[StoredLayer], ties: dict[str, str]) -> tuple[StorageFormat, list[str]]:
    """The storage format for given layers, with a remark where it is not the first choice.

    Raises:
        FormatError: The format that was asked for cannot hold them.
    """
    first = FORMATS["compressed-tensors"]
    refusals = [(layer.site, first.refuses(layer)) for layer in layers]
    reasons = [f"{site}: {reason}" for site, reason in refusals if reason]
    schemes = [layer.scheme for layer in layers]
    if any(scheme.activation for scheme in schemes) and not all(scheme.weight.symmetric for scheme in schemes):
        reasons.append(
            "transformers loads asymmetric weights in it only with the 8-bit activations of all layers dropped"
        )
    if ties:
        reasons.append(f"{next(iter(ties))} runs on a quantized embedding, which compressed-tensors cannot say")
    if wanted == "compressed-tensors" and reasons:
        raise FormatError(
            f"compressed-tensors cannot hold this: {reasons[0]}"
            f"{f' (and {len(reasons) - 1} more)' if len(reasons) > 1 else ''}. Use --format native, or change the "
            "recipe."
        )
    if wanted == "native" or not reasons:
        return FORMATS["native" if wanted == "native" else "compressed-tensors"], []
    return FORMATS["native"], [
        "Stored in the native format, which only goldstick reads, because compressed-tensors cannot hold it: "
        f"{reasons[0]}."
    ]
