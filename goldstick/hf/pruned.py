"""Pruned transformers models whose config cannot say so: their checkpoint tells what was cut, and loading cuts again.

Such a config.json keeps the numbers of the model as it was. transformers alone would build that model and fill what it
does not find with noise, so the model type and a number that its classes check are a word there, and it stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from goldstick.core.edits import Prune
from goldstick.errors import SourceError
from goldstick.structure.pruning.cut import apply_cut, prune_from_dict, restore_scattered

#: What a config.json says in the place of the model type and a number; and the key of what was cut.
PRUNED = "goldstick_pruned"
_HIDDEN = ("model_type", "initializer_range")


def tell_cuts(settings: Any, cuts: Sequence[Prune]) -> None:
    """Let the config of a model in memory tell what was cut out of it, after what it tells already."""
    before = cuts_of(settings)
    setattr(settings, PRUNED, {"cuts": [cut.to_dict() for cut in (*before, *cuts)]})


def cuts_of(settings: Any) -> list[Prune]:
    """What a config tells of cuts.

    Raises:
        StructureError: It makes no sense.
    """
    told = getattr(settings, PRUNED, None)
    cuts = told.get("cuts") if isinstance(told, Mapping) else None
    return [prune_from_dict(cut) for cut in cuts] if isinstance(cuts, list) else []


def cut_as_told(model: Any) -> None:
    """Cut out of a model, possibly on the meta device, what its config tells.

    Raises:
        StructureError: It tells of channels that the model does not have.
    """
    for cut in cuts_of(model.config):
        apply_cut(model, cut)


def restore_as_told(model: Any) -> None:
    """Give the modules of a model that was cut on the meta device the numbers that no checkpoint holds."""
    restore_scattered(model, cuts_of(model.config))


def marked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model whose config tells of cuts; any other as it is."""
    told = config.get(PRUNED)
    if not told:
        return dict(config)
    hidden = {key: config[key] for key in _HIDDEN if key in config}
    return {**config, **dict.fromkeys(_HIDDEN, PRUNED), PRUNED: {**told, "hidden": hidden}}


def unmarked(raw: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A config.json less the mark, for code that knows what to do with the rest.

    Raises:
        SourceError: It has the mark, and does not tell what was cut.
    """
    if raw.get("model_type") != PRUNED:
        return dict(raw)
    told = raw.get(PRUNED)
    # transformers would take a table with a model type of its own, one level down, for the config.
    hidden = told.get("hidden") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(told.get("cuts"), list) or not isinstance(hidden, Mapping):
        raise SourceError(f"{where}: config.json is that of a pruned model and does not tell what was cut.")
    shown = {key: hidden[key] for key in _HIDDEN if key in hidden}
    kept = {key: value for key, value in raw.items() if key not in _HIDDEN}
    return {**kept, **shown, PRUNED: {"cuts": told["cuts"]}}


def is_marked(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model which transformers alone cannot build."""
    return config.get("model_type") == PRUNED


def cuts_something(model: nn.Module) -> bool:
    """Whether a model's config tells of cuts."""
    return bool(cuts_of(getattr(model, "config", None)))
