"""Which matrices of a checkpoint stay float, as its config lists them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from goldstick.formats.name_patterns import module_names
from goldstick.structure.network import Network


def float_matrices(
    network: Network, matrices: Mapping[str, str], quantized: Collection[str], stored: Iterable[str]
) -> list[str]:
    """Modules whose matrices stay float, by all their names, less the embeddings; heads that are tied to one, too.

    Args:
        network: The network, with the sites it had before anything was rounded.
        matrices: The float matrices of the checkpoint: name → parameter.
        quantized: Names of the sites that are quantized.
        stored: Parameters that the checkpoint stores.
    """
    embeddings = {site.parameter_name for site in network.sites if site.role == "embedding"}
    found = [
        module
        for name, parameter in matrices.items()
        if parameter not in embeddings
        for module in module_names(name, parameter)
    ]
    present = {*stored}
    heads = [site for site in network.sites if site.role == "head" and site.name not in quantized]
    return found + [site.module for site in heads if site.parameter_name not in present]
