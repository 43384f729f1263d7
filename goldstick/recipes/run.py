"""Run: do what a resolution says to a network in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from goldstick import surgery
from goldstick.algorithms import Algorithm, Exposure
from goldstick.core.edits import Edit, Quantize
from goldstick.core.error import WeightError, weight_error
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.recipes.resolve import Assignment, Resolution
from goldstick.structure.network import Network, Site


class Progress(Protocol):
    """Told how far a job is: ``done`` of ``total`` items of ``description``."""

    def __call__(self, description: str, done: int, total: int) -> None:
        """Take note."""


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """What became of one site.

    Attributes:
        assignment: What was to happen to it.
        error: How far the quantized weight lies from the original.
    """

    assignment: Assignment
    error: WeightError


def quiet(description: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


def decide(stage: Algorithm, site: Site, weight: Tensor, scheme: Scheme) -> tuple[Quantize, WeightError]:
    """What a data-free stage decides for one matrix [..., out, in], and its error.

    Raises:
        QuantizationError: The weight holds NaN or infinity; the message names the site.
        RecipeError: The stage is not data-free.
    """
    if stage.exposure is not Exposure.NONE:
        raise RecipeError(f"{stage.name} needs data to look at; this path has none.")
    try:
        edits = stage.solve(site, weight, stage.attach(site), scheme)
    except QuantizationError as error:
        raise QuantizationError(
            f"{site.name} {tuple(weight.shape)} cannot be quantized: {error} Check the source checkpoint, or exclude "
            "this layer (targets: {exclude: [...]})."
        ) from error
    edit = _the_quantization(edits, site)
    return edit, weight_error(weight, edit.tensor)


def _the_quantization(edits: Sequence[Edit], site: Site) -> Quantize:
    found = [edit for edit in edits if isinstance(edit, Quantize)]
    if len(found) != 1:
        raise QuantizationError(f"The algorithm gave {len(found)} quantizations for {site.name} instead of one.")
    return found[0]


def run(network: Network, resolution: Resolution, progress: Progress = quiet) -> dict[str, SiteResult]:
    """Quantize every assigned site of a network, in place; ties follow.

    Returns:
        Site name → what became of it, in the order of the network's sites.
    """
    results = {}
    order = [site for site in network.sites if site.name in resolution.assignments]
    for index, site in enumerate(order):
        progress("quantizing", index, len(order))
        assignment = resolution.assignments[site.name]
        edit, error = decide(assignment.stage, site, network.weight(site), assignment.scheme)
        surgery.apply(network, [edit])
        results[site.name] = SiteResult(assignment=assignment, error=error)
    for tied, owner in resolution.ties.items():
        surgery.tie(network, network.by_name[tied], network.by_name[owner])
    if resolution.ties or resolution.untied:
        surgery.forget_ties(network)
    progress("quantizing", len(order), len(order))
    return results
