"""Which storage format a result gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from goldstick.errors import FormatError
from goldstick.formats import FALLBACK, FORMATS, PREFERRED
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.stored_piece import StoredPiece
from goldstick.hf.initialisers import initialisers_fail
from goldstick.hf.model_in_memory import is_transformers
from goldstick.hf.pruned import cuts_something

#: How it is said that the result is not in the format that others read.
STORED_NATIVE = f"Stored in the {FALLBACK} format, which only goldstick reads"


def choose_format(wanted: str, layers: Sequence[StoredLayer], ties: dict[str, str]) -> tuple[StorageFormat, list[str]]:
    """The storage format for given layers, with what the user should know of it.

    Args:
        wanted: Name of a format, or ``auto``: compressed-tensors where it can hold the layers, native otherwise.
        layers: Everything quantized.
        ties: Sites that run on another's quantized weight: site → owner.

    Raises:
        FormatError: The format that was asked for cannot hold them.
    """
    storage = FORMATS[PREFERRED if wanted == "auto" else wanted]
    reasons = refusals(storage, layers, ties)
    if not reasons:
        return storage, storage.remarks(layers)
    if wanted != "auto":
        raise FormatError(f"{refusal_words(storage, reasons)} Use --format {FALLBACK}, or change the recipe.")
    return FORMATS[FALLBACK], [f"{STORED_NATIVE}, because {PREFERRED} cannot hold it: {reasons[0]}."]


def format_in_memory(
    model: nn.Module, wanted: str, pieces: Sequence[StoredPiece], ties: dict[str, str]
) -> tuple[StorageFormat, list[str]]:
    """The storage format for a model in memory, with what the user should know of it.

    Any module but a transformers model is stored natively, and so is one whose config cannot say what was cut.

    Raises:
        FormatError: The format that was asked for cannot hold it.
    """
    layers = [piece.layer for piece in pieces]
    if not is_transformers(model):
        return choose_format(FALLBACK, layers, ties)
    if not cuts_something(model):
        return choose_format(wanted, layers, ties)
    reason = (
        "no config of this transformers model can say what was pruned: its blocks have lost different numbers of "
        "channels, or so many heads are left that the config refuses them"
    )
    if wanted not in ("auto", FALLBACK):
        raise FormatError(
            f"{wanted} cannot hold this: {reason}. Use --format {FALLBACK}; or prune with 'scope: layer', the same "
            "layers in every block, and another share of the heads."
        )
    return FORMATS[FALLBACK], [f"Only goldstick.load reads the result, since {reason}."]


def loader_remarks(storage: StorageFormat, layers: Sequence[StoredLayer], model: nn.Module) -> list[str]:
    """What the user should know where transformers by itself does not load the result.

    Args:
        storage: The format that was chosen.
        layers: Everything quantized.
        model: The model, float or quantized.
    """
    packed = {layer.site for layer in layers if layer.kind == "linear" and not layer.scheme.activation}
    reason = initialisers_fail(model, packed) if storage.empties_layers and packed else None
    if reason is None:
        return []
    return [
        f"transformers alone does not load a {type(model).__name__} from {storage.name}, since its initialisers "
        f"reach for the weights of packed layers ({reason}). goldstick.load does; so does from_pretrained behind "
        f"'import goldstick' with --format {FALLBACK}."
    ]


def refusals(storage: StorageFormat, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> list[str]:
    """Why a format cannot hold layers, each with its name; empty where it can."""
    found = [(layer.site, _refuses_beside(storage, layer) or storage.refuses(layer)) for layer in layers]
    reasons = [f"{site}: {reason}" for site, reason in found if reason]
    together = storage.refuses_together(layers, ties)
    return [*reasons, *([together] if together else [])]


def _refuses_beside(storage: StorageFormat, layer: StoredLayer) -> str | None:
    """Why it cannot hold what a layer does to its input, whatever it is made of."""
    if layer.rotated and not storage.holds_rotations:
        return (
            "its input is turned by a Hadamard transform when it runs (rotate's 'online: true'), which "
            f"{storage.name} cannot say; native and compressed-tensors can"
        )
    if not layer.act_order or storage.holds_order:
        return None
    return (
        "its groups take their inputs from all over the row (act-order, a g_idx that is not in order), and "
        f"{storage.name} holds groups of consecutive inputs only"
    )


def refusal_words(storage: StorageFormat, reasons: Sequence[str]) -> str:
    """A sentence of the first reason, and how many there are."""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{storage.name} cannot hold this: {reasons[0]}{more}."
