"""Declared: layers that the config says stay float and are stored quantized, and the reverse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from goldstick.errors import FormatError
from goldstick.formats.compressed_tensors import group_of
from goldstick.formats.name_patterns import name_matcher
from goldstick.pipeline.doctor.examined import Examined
from goldstick.pipeline.doctor.finding import Finding
from goldstick.structure.network import Layout, Site

_HEAD = "lm_head"


def declared_findings(examined: Examined) -> Iterator[Finding]:
    """Where ``ignore``, ``dynamic`` or ``modules_to_not_convert`` and the tensors say different things."""
    if examined.stored is None or examined.stored.format.name == "native":  # whose config lists the layers by name
        return
    quantized = {layer.name.removesuffix(".weight") for layer in examined.layers}
    try:
        excepted = [name for name in sorted(quantized) if _stays_float(name, examined, None)]
        promised = [name for name, site in _float_linears(examined) if not _stays_float(name, examined, site)]
    except FormatError as error:
        yield _finding("the config's list of exceptions makes no sense", [str(error)])
        return
    if excepted:
        yield _finding("layers that the config leaves in float are stored quantized", excepted)
    if promised:
        yield _finding("layers that the config quantizes are stored in float; readers look for their codes", promised)


def _finding(what: str, where: list[str]) -> Finding:
    return Finding(
        severity="fault",
        check="exceptions",
        what=what,
        where=tuple(where),
        remedy="correct ignore, dynamic or modules_to_not_convert in quantization_config",
    )


def _float_linears(examined: Examined) -> list[tuple[str, Site]]:
    """Modules of linear layers and experts whose weight is stored in float, as the checkpoint calls them."""
    layouts = (Layout.LINEAR, Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS)
    sites = {site.parameter_name: site for site in examined.network.sites if site.layout in layouts}
    codes = {layer.name for layer in examined.layers}
    found = []
    for name, info in examined.tensors.items():
        if name in codes or not name.endswith(".weight") or not info.dtype.is_floating_point:
            continue
        site = sites.get(examined.names.piece(name).parameter)
        if site is not None:
            found.append((name.removesuffix(".weight"), site))
    return found


def _stays_float(module: str, examined: Examined, site: Site | None) -> bool:
    """Whether the config has a module stay float; ``site`` is given for one that does."""
    assert examined.stored is not None
    table, storage = examined.table, examined.stored.format.name
    if storage == "compressed-tensors":
        return _ignored(module, table) or (site is not None and group_of(module, table) is None)
    inside = site is None or site.block is not None
    if storage == "awq":
        listed = table.get("modules_to_not_convert") or []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise FormatError("modules_to_not_convert is no list of names")
        return not inside or any(name in module for name in listed)
    if module == _HEAD or not inside:
        return not bool(table.get(_HEAD, False))
    limited = any(key in table for key in ("modules_in_block_to_quantize", "inside_layer_modules"))
    return (limited and site is not None) or _excepted(module, table)


def _ignored(module: str, table: Mapping[str, Any]) -> bool:
    ignore = table.get("ignore") or []
    if not isinstance(ignore, list) or not all(isinstance(entry, str) for entry in ignore):
        raise FormatError("ignore is no list of names")
    return any(
        name_matcher(entry[3:]).match(module) is not None if entry.startswith("re:") else entry in (module, "Linear")
        for entry in ignore
    )


def _excepted(module: str, table: Mapping[str, Any]) -> bool:
    """Whether the first pattern of GPTQ's ``dynamic`` that matches takes the module out."""
    dynamic = table.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise FormatError("dynamic is no table of patterns")
    for pattern in dynamic:
        if name_matcher(re.sub(r"^[+-]:", "", pattern)).match(module):
            return bool(pattern.startswith("-:"))
    return False
