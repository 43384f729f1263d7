"""Declared: layers that the config says stay float and are stored quantized, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.core.layout import Layout
from goldstick.errors import FormatError
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding
from goldstick.structure.network import Site


def declared_findings(examined: Examined) -> Iterator[Finding]:
    """Where ``ignore``, ``dynamic`` or ``modules_to_not_convert`` and the tensors say different things."""
    if examined.stored is None:
        return
    quantized = {layer.name.removesuffix(".weight") for layer in examined.layers}
    try:
        stays_float = examined.stored.format.stays_float(examined.table)
        if stays_float is None:
            return
        excepted = [name for name in sorted(quantized) if stays_float(name, None)]
        promised = [name for name, site in _float_linears(examined) if not stays_float(name, site.block is not None)]
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
