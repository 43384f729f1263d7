"""Left alone: why every parameter that is not quantized stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from goldstick.algorithms import Quantizer
from goldstick.errors import StructureError
from goldstick.structure.network import Layout, Network, Site
from goldstick.structure.plain_layers import computes_plainly

#: Share of a model's matrices that may stay float because goldstick does not recognise them.
UNRECOGNISED_LIMIT = 0.20


def ignored(
    network: Network, stages: Sequence[Quantizer], quantized: Set[str], skipped: Mapping[str, str]
) -> dict[str, str]:
    """Parameter or buffer name → the reason why it is not quantized.

    Args:
        network: The network.
        stages: The recipe's stages that quantize.
        quantized: Names of the sites that are quantized or run on a quantized weight.
        skipped: Parameter name → reason, for those a stage skips.

    Raises:
        StructureError: There are stages, and more than a fifth of the matrices are of a kind goldstick does not
            recognise.
    """
    sites = {site.parameter_name: site for site in network.sites}
    tied = network.tied()
    reasons: dict[str, str] = {}
    unrecognised: dict[str, int] = {}
    total = 0
    for name, parameter in network.model.named_parameters(remove_duplicate=False):
        site = sites.get(name)
        if name not in tied and parameter.ndim >= 2 and parameter.shape[0] > 1:
            if site is None:
                unrecognised[name] = parameter.numel()
            if site is None or site.layout is not Layout.EMBEDDING:
                total += parameter.numel()
        if site is None or site.name not in quantized:
            reasons[name] = skipped.get(name) or _reason(name, site, network, parameter.ndim, stages, tied)
    for name, _ in network.model.named_buffers():
        reasons[name] = "buffer: state, not a weight"
    if stages:  # where nothing is rounded, every layer stays float because the recipe says so
        _refuse(unrecognised, total)
    return reasons


def _reason(
    name: str, site: Site | None, network: Network, ndim: int, stages: Sequence[Quantizer], tied: Mapping[str, str]
) -> str:
    if name in tied:
        return f"tied to {tied[name]}"
    if site is None and ndim < 2:
        return "not a matrix (bias, norm)"
    if site is None:
        module = network.model.get_submodule(name.rpartition(".")[0])
        own = "" if computes_plainly(module) else f": {type(module).__name__} computes more than W·x + b"
        return f"a parameter of a kind that is not quantized{own}"
    for stage in stages:
        pattern = stage.targets.excludes(site)
        if pattern:
            return f"excluded by the pattern {pattern!r}"
    if site.role != "inner":
        return f"{'embedding' if site.role == 'embedding' else 'output head'}: left alone unless an include names it"
    return "included by no stage"


def _refuse(unrecognised: Mapping[str, int], total: int) -> None:
    size = sum(unrecognised.values())
    if total and size > UNRECOGNISED_LIMIT * total:
        shown = ", ".join(sorted(unrecognised, key=lambda name: -unrecognised[name])[:5])
        raise StructureError(
            f"{size / total:.0%} of this model's matrix weights are parameters goldstick does not recognise, or of "
            f"layers that compute more than W·x + b ({shown}), and would stay float although no rule asked for that. "
            "Please report the architecture; its parameters belong into goldstick/structure/overrides.py."
        )
