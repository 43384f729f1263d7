"""Left alone: why every parameter that is not quantized stays as it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set

from torch import nn

from goldstick.algorithms import Quantizer
from goldstick.core.layout import Layout
from goldstick.core.notices import UnrecognisedWarning
from goldstick.errors import StructureError
from goldstick.structure.network import Network, Site

#: Share of a model's matrices that stay float, because goldstick does not recognise them, before that is said aloud.
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
        StructureError: A stage asks for an error where it may meet matrices of a kind that goldstick does not
            recognise.

    Warns:
        UnrecognisedWarning: They are more than a fifth of the matrices.
    """
    sites = {site.parameter_name: site for site in network.sites}
    tied = network.tied()
    reasons: dict[str, str] = {}
    unrecognised: dict[str, int] = {}
    total = 0
    modules = dict(network.model.named_modules(remove_duplicate=False))  # scripted ones are found by no path
    for name, parameter in network.model.named_parameters(remove_duplicate=False):
        if not parameter.numel():
            reasons[name] = "a layer without inputs or outputs: it holds no numbers"
            continue
        if "weight_packed" in modules[name.rpartition(".")[0]]._buffers:
            reasons[name] = "of a layer that is quantized already"
            continue
        site = sites.get(name)
        if name not in tied and parameter.ndim >= 2 and parameter.shape[0] > 1:
            if site is None and any(_meant(stage, name) for stage in stages):
                unrecognised[name] = parameter.numel()
            if site is None or site.layout is not Layout.EMBEDDING:
                total += parameter.numel()
        if site is None or site.name not in quantized:
            reasons[name] = skipped.get(name) or _reason(name, site, network, parameter.ndim, stages, tied)
    for name, _ in network.model.named_buffers():
        reasons[name] = "buffer: state, not a weight"
    if unrecognised:
        _speak_of(unrecognised, total, any(stage.unrecognised == "error" for stage in stages))
    return reasons


def _reason(
    name: str, site: Site | None, network: Network, ndim: int, stages: Sequence[Quantizer], tied: Mapping[str, str]
) -> str:
    if name in tied:
        return f"tied to {tied[name]}"
    if site is None and ndim < 2:
        return "not a matrix (bias, norm)"
    if site is None:
        pattern = next((found for stage in stages if (found := stage.targets.excludes_name(name))), None)
        if pattern:
            return f"excluded by the pattern {pattern!r}"
        layer = _parametrized(name, network)
        if layer:
            return (
                f"the weight of {layer} is computed from this in every call (a parametrization, such as weight norm); "
                "torch.nn.utils.parametrize.remove_parametrizations, or remove_weight_norm, makes it a plain one"
            )
        return "a parameter of a kind that is not quantized"
    for stage in stages:
        pattern = stage.targets.excludes(site)
        if pattern:
            return f"excluded by the pattern {pattern!r}"
    if site.role != "inner":
        role = {"head": "output head"}.get(site.role, site.role)
        return f"{role}: left alone unless an include names it"
    return "included by no stage"


def _parametrized(name: str, network: Network) -> str:
    """The layer whose weight is computed from a parameter, or nothing."""
    layer, found, _ = name.rpartition(".parametrizations.weight.")
    if found:
        return layer
    layer, _, leaf = name.rpartition(".")
    normed = leaf in ("weight_g", "weight_v") and not isinstance(
        network.model.get_submodule(layer).weight, nn.Parameter
    )
    return layer if normed else ""


def _meant(stage: Quantizer, name: str) -> bool:
    """Whether a stage that quantizes all it can would take a parameter if goldstick recognised it."""
    return not stage.targets.include and stage.targets.excludes_name(name) is None


def _speak_of(unrecognised: Mapping[str, int], total: int, refuse: bool) -> None:
    size = sum(unrecognised.values())
    shown = ", ".join(sorted(unrecognised, key=lambda name: -unrecognised[name])[:5])
    what = (
        f"{size / max(total, 1):.0%} of this model's matrix weights are parameters of a kind that goldstick does not "
        f"recognise ({shown})"
    )
    if refuse:
        raise StructureError(
            f"{what}, and the recipe says 'unrecognised: error'. Exclude them by name (targets: {{exclude: [...]}}), "
            "or say 'unrecognised: leave'."
        )
    if size > UNRECOGNISED_LIMIT * total:
        warnings.warn(f"{what}; they stay float, and the report names them.", UnrecognisedWarning, stacklevel=2)
