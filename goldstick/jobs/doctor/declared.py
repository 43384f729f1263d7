"""Declared: layers that the config says stay float and are stored quantized, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from goldstick.errors import FormatError
from goldstick.formats.compressed_tensors import groups_by_module
from goldstick.formats.gptq import dynamic_exceptions
from goldstick.formats.name_matching import NamePatterns
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding
from goldstick.structure.network import Layout, Site

_HEAD = "lm_head"


def declared_findings(examined: Examined) -> Iterator[Finding]:
    """Where ``ignore``, ``dynamic`` or ``modules_to_not_convert`` and the tensors say different things."""
    if examined.stored is None or examined.stored.format.name == "native":  # whose config lists the layers by name
        return
    quantized = {layer.name.removesuffix(".weight") for layer in examined.layers}
    try:
        stays_float = _DECLARED.get(examined.stored.format.name, _by_gptq)(examined.table)
        excepted = [name for name in sorted(quantized) if stays_float(name, None)]
        promised = [name for name, site in _float_linears(examined) if not stays_float(name, site)]
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


#: Whether the config has a module stay float; the site is given for one that does.
StaysFloat = Callable[[str, Site | None], bool]


def _by_compressed_tensors(table: Mapping[str, Any]) -> StaysFloat:
    ignored = NamePatterns(_names(table, "ignore"))
    everything = "Linear" in _names(table, "ignore")
    group_of = groups_by_module(table)

    def stays_float(module: str, site: Site | None) -> bool:
        taken_out = everything or ignored.first(module) is not None
        return taken_out or (site is not None and group_of(module) is None)

    return stays_float


def _by_awq(table: Mapping[str, Any]) -> StaysFloat:
    listed = frozenset(_names(table, "modules_to_not_convert"))
    lengths = sorted({len(name) for name in listed})

    def stays_float(module: str, site: Site | None) -> bool:
        # A listed name may stand anywhere in a module's, whose parts are fewer than a list of names may be long.
        parts = (module[at : at + size] for size in lengths for at in range(len(module) - size + 1))
        return not _inside(site) or any(part in listed for part in parts)

    return stays_float


def _by_gptq(table: Mapping[str, Any]) -> StaysFloat:
    exception_of = dynamic_exceptions(table)
    limited = any(key in table for key in ("modules_in_block_to_quantize", "inside_layer_modules"))

    def stays_float(module: str, site: Site | None) -> bool:
        if module == _HEAD or not _inside(site):
            return not bool(table.get(_HEAD, False))
        return (limited and site is not None) or exception_of(module)[0]

    return stays_float


_DECLARED: Mapping[str, Callable[[Mapping[str, Any]], StaysFloat]] = {
    "compressed-tensors": _by_compressed_tensors,
    "awq": _by_awq,
}


def _inside(site: Site | None) -> bool:
    """Whether a module lies in a block; what is stored quantized is taken to."""
    return site is None or site.block is not None


def _names(table: Mapping[str, Any], key: str) -> list[str]:
    listed = table.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FormatError(f"{key} is no list of names")
    return listed
