"""A checkpoint's layers by the names that they have in a model of another class than the one it was saved from.

transformers reads a checkpoint of a model with a head into one without, with another, and the other way round: it puts
the prefix of the model without head (``base_model_prefix``) before the names of tensors or takes it off, passes over
what the model does not have, and initialises what the checkpoint does not have. The names in a table of layers follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from goldstick.structure.network import Network


def is_of_another_class(model: Any) -> bool:
    """Whether the files that a model is loaded from are of another class, by its config, or of none that it names."""
    return type(model).__name__ not in (getattr(model.config, "architectures", None) or ())


def name_in(model: Any, known: Iterable[str]) -> Callable[[str], str]:
    """What a checkpoint's names are in a model: with its base model's prefix, or without, where only that is known.

    Args:
        model: The model.
        known: Names that it has.
    """
    found, prefix = frozenset(known), f"{model.base_model_prefix}."

    def named(name: str) -> str:
        ways = name, name.removeprefix(prefix), prefix + name
        return next((way for way in ways if way in found), name)

    return named


def table_for(network: Network, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of layers in the names of a model of another class, less the layers that it does not have.

    transformers says which tensors these were. A layer of the model that runs on the weight of a quantized one, by the
    model's own ties, is tied to it.

    Args:
        network: The model.
        table: ``quantization_config`` of the native format.
    """
    known, model = network.by_name, network.model
    named = name_in(model, known)
    fitted = dict(table)
    for key in ("sites", "rotated"):
        renamed = {named(site): value for site, value in (table.get(key) or {}).items()}
        fitted[key] = {site: value for site, value in renamed.items() if site in known}
    for key in ("multiplied", "reordered"):
        fitted[key] = [site for site in map(named, table.get(key) or ()) if site in known]
    named_tensor = name_in(model, model.state_dict())
    fitted["unused"] = [named_tensor(name) for name in table.get("unused") or ()]
    sites = fitted["sites"]
    told = {named(tied): named(owner) for tied, owner in (table.get("ties") or {}).items()}
    by_parameter = {site.parameter_name: site.name for site in network.sites}
    own = {by_parameter.get(tied, ""): by_parameter.get(owner, "") for tied, owner in network.tied().items()}
    ties = {**own, **told}
    fitted["ties"] = {
        tied: owner for tied, owner in ties.items() if tied in known and tied not in sites and owner in sites
    }
    return fitted
