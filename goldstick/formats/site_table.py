"""Site table: a ``quantization_config`` that lists every quantized site with its scheme, written and read.

The native format has it, and every format that says nothing else of its config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as shown
from typing import Any

from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, RecipeError

TABLE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class SiteTable:
    """The sites that a config lists by name; nothing for a config that has layers matched by patterns.

    Attributes:
        schemes: Quantized site → scheme.
        ties: Site → the site on whose quantized weight it runs.
        multiplied: Sites whose input is multiplied.
        act_order: Sites whose columns lie in an order of their own.
        rotated: Sites whose input is turned at run time → channels that are mixed.
    """

    schemes: Mapping[str, Scheme] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    multiplied: frozenset[str] = frozenset()
    act_order: frozenset[str] = frozenset()
    rotated: Mapping[str, int] = field(default_factory=dict)


def write_table(method: str, table: SiteTable) -> dict[str, Any]:
    """The ``quantization_config`` that says a table."""
    config = {
        "quant_method": method,
        "version": TABLE_VERSION,
        "schemes": {scheme.label: _described(scheme) for scheme in table.schemes.values()},
        "sites": {site: scheme.label for site, scheme in table.schemes.items()},
        "ties": dict(table.ties),
    }
    beside = {"multiplied": table.multiplied, "reordered": table.act_order}
    if table.rotated:
        config["rotated"] = {site: table.rotated[site] for site in table.schemes if site in table.rotated}
    return config | {key: [site for site in table.schemes if site in sites] for key, sites in beside.items() if sites}


def read_table(config: Mapping[str, Any]) -> SiteTable:
    """The table of a ``quantization_config``.

    Raises:
        FormatError: The config is of a later version, or contradicts itself.
    """
    return SiteTable(
        schemes=_schemes(config),
        ties=_ties(config),
        multiplied=_listed(config, "multiplied", "multiplies what"),
        act_order=_listed(config, "reordered", "puts in order what"),
        rotated=_rotated(config),
    )


def _schemes(config: Mapping[str, Any]) -> dict[str, Scheme]:
    if "version" not in config:
        raise FormatError("The checkpoint's config says no 'version' of the native format; fetch the file again.")
    if config["version"] != TABLE_VERSION:
        raise FormatError(
            f"The checkpoint is written in version {shown(config.get('version'))} of the native format and this "
            f"goldstick reads version {TABLE_VERSION}; install a newer goldstick."
        )
    sites = _table_of_texts(config, "sites")
    table = config.get("schemes")
    if not isinstance(table, Mapping):
        raise FormatError("The checkpoint's config has no table 'schemes'.")
    schemes = {label: scheme_from_dict(value) for label, value in table.items()}
    missing = {label for label in sites.values() if label not in schemes}
    if missing:
        raise FormatError(
            f"The checkpoint's config names schemes it does not define: {', '.join(sorted(missing))[:300]}."
        )
    return {site: schemes[label] for site, label in sites.items()}


def _ties(config: Mapping[str, Any]) -> dict[str, str]:
    sites = _table_of_texts(config, "sites")
    ties = _table_of_texts(config, "ties") if config.get("ties") else {}
    for site, owner in ties.items():
        if owner not in sites or site in sites:
            raise FormatError(
                f"The checkpoint's config has {site[:100]!r} run on the quantized {owner[:100]!r}, and its 'sites' "
                "say otherwise."
            )
    return ties


def _rotated(config: Mapping[str, Any]) -> dict[str, int]:
    table = config.get("rotated") or {}
    sites = _table_of_texts(config, "sites")
    if not isinstance(table, Mapping) or not all(type(size) is int and size > 0 for size in table.values()):
        raise FormatError("The checkpoint's config has a 'rotated' that is no table of sizes.")
    if unknown := sorted(set(table) - set(sites)):
        raise FormatError(f"The checkpoint's config turns what {unknown[0]!r} is given, and does not quantize it.")
    return dict(table)


def _table_of_texts(config: Mapping[str, Any], key: str) -> dict[str, str]:
    table = config.get(key)
    if not isinstance(table, Mapping) or not all(isinstance(value, str) for value in table.values()):
        raise FormatError(f"The checkpoint's config has no table {key!r} of texts.")
    return dict(table)


def _listed(config: Mapping[str, Any], key: str, does: str) -> frozenset[str]:
    listed = config.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FormatError(f"The checkpoint's config has a {key!r} that is no list of names.")
    found = frozenset(listed)
    unknown = found - set(_table_of_texts(config, "sites"))
    if unknown:
        raise FormatError(f"The checkpoint's config {does} {min(unknown)} is given, and does not quantize it.")
    return found


def scheme_from_dict(value: Any) -> Scheme:
    """A scheme from its dictionary form.

    Raises:
        FormatError: It is no scheme.
    """
    weight = value.get("weight") if isinstance(value, Mapping) else None
    activation = value.get("activation") if isinstance(value, Mapping) else None
    try:
        return Scheme(weight=_grid(weight), activation=_grid(activation) if activation is not None else None)
    except RecipeError as error:
        raise FormatError(f"The checkpoint's config holds a scheme that makes no sense: {error}") from error


def _described(scheme: Scheme) -> dict[str, Any]:
    activation = scheme.activation.described() if scheme.activation else None
    return {"weight": scheme.weight.described(), "activation": activation}


def _grid(value: Any) -> Grid:
    kinds = {"bits": int, "symmetric": bool, "granularity": str, "group_size": int, "element": str}
    scale = None
    if isinstance(value, Mapping) and "scale" in value:
        scale = None if value["scale"] is None else _grid(value["scale"])
        value = {key: item for key, item in value.items() if key != "scale"}
    fits = isinstance(value, Mapping) and all(
        type(item) is kinds.get(key) or (key == "group_size" and item is None) for key, item in value.items()
    )
    if not fits:
        raise FormatError(f"The checkpoint's config holds a scheme with the grid {shown(value)}, which is none.")
    return Grid(**value, scale=scale)
