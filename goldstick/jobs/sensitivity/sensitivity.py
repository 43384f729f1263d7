"""Sensitivity: how much the output of a model changes when one layer is rounded, for every layer and width."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from goldstick.algorithms import Quantizer
from goldstick.algorithms.base import rounds
from goldstick.algorithms.column_importance import without_importance
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.algorithms.stage import Rotation, of_kind
from goldstick.core.agreement import require_same, sizes_of
from goldstick.core.counts import counted
from goldstick.core.grid import Grid
from goldstick.core.progress import Progress, quiet
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.ranks import Ranks
from goldstick.errors import RecipeError, UsageError
from goldstick.evaluation.kl import token_kl
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load_float
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.recipes.idle import refuse_idle
from goldstick.recipes.recipe import Calibration, Recipe
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.report.sensitivity import LayerSensitivity, Sensitivity
from goldstick.structure.network import Network, Site


def measure_sensitivity(
    directory: Path,
    recipe: Recipe,
    widths: Sequence[int],
    text: Calibration,
    *,
    data_dir: Path | None = None,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Sensitivity:
    """Round every layer that a recipe targets to nearest, alone, at each width, and compare the model's predictions.

    The figure is the mean over all tokens of KL(p ‖ q), p the float model's distribution of the next token and q that
    of the model with one layer rounded, on the recipe's grid with another number of bits. Weights alone are rounded,
    in the dtype they are stored in; everything is computed in float32, the sums in float64. The float model's logits
    are computed once; a layer's runs begin at its block.

    Args:
        directory: A float checkpoint of a causal language model.
        recipe: Names the layers, their grid and the range search (``imatrix`` counts as ``mse``).
        widths: The bits to try, each 1 to 8.
        text: The text.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.
        ranks: Who does it together, layer by layer; all of them get the result.

    Raises:
        RecipeError: The recipe rounds nothing, rotates, or is illegal for this model.
        UsageError: A width is no number of bits.
        DataError: The text is missing, malformed or too short.
        SourceError: The directory is no readable float model.
    """
    if not widths or any(not 1 <= bits <= 8 for bits in widths):
        raise UsageError(f"Widths are 1 to 8 bits, not {', '.join(map(str, widths)) or 'none'}.")
    stages = [stage for stage in recipe.stages if rounds(stage)]
    if not stages or of_kind(recipe.stages, Rotation):
        problem = "rotates, and so rounds other weights than the model has" if stages else "rounds no layer"
        raise RecipeError(f"The recipe {problem}; give one that rounds the model's own layers, such as rtn-w4a16-g128.")
    ranks = ranks or Ranks()
    model = load_float(directory)
    network = Network(model)
    resolution = resolve(stages, network)
    refuse_idle(network, resolution)
    data = calibration_data(text, directory, data_dir)(model)
    asked = [recipe.model_dump(mode="json", exclude={"calibration"}), sorted(widths)]
    require_same(ranks, {"model": sizes_of(directory), "recipe or widths": asked, "text": data.fingerprint})
    runs = BlockRuns(model.float(), data.batches())
    right = list(runs.logits())
    chosen = [site for site in network.sites if site.name in resolution.assignments]
    places = {site.name: _place(runs, site, resolution) for site in chosen}
    others = [name for name in places if not resolution.assignments[name].scheme.weight.plain]
    if others:
        label = resolution.assignments[others[0]].scheme.label
        raise UsageError(f"It tries integer widths, and {others[0]} becomes {label}; give a scheme such as w4a16-g128.")
    order = sorted(places, key=lambda name: places[name])

    def measured(number: int) -> LayerSensitivity:
        name = order[number]
        progress("sensitivity", number, len(places))
        runs.start_at(places[name])
        return _layer(network, resolution, name, tuple(sorted(set(widths))), runs, right)

    found = dict(zip(order, ranks.each([runs.cost(places[name]) for name in order], measured), strict=True))
    progress("sensitivity", len(places), len(places))
    grid = stages[0].scheme_for(chosen[0]).weight  # that of the recipe, also where a layer has narrower groups
    return Sensitivity(
        model=str(directory),
        inputs=f"{counted(data.ids.shape[0], 'sample')} of {counted(data.ids.shape[1], 'token')} from {text.dataset}",
        tokens=data.ids.numel(),
        grid={
            "granularity": grid.granularity,
            "group_size": grid.group_size,
            "symmetric": grid.symmetric,
            "range_search": _search(stages[0]),
        },
        widths=tuple(sorted(set(widths))),
        layers=tuple(found[name] for name in places),
    )


def mean_kl(right: Sequence[Tensor], tried: Iterator[Tensor]) -> float:
    """The mean over all tokens of KL(p ‖ q) in nats, of batches of logits; exact over tokens, rounded once."""
    values: list[float] = []
    for first, second in zip(right, tried, strict=True):
        values += token_kl(first, second).flatten().tolist()
    return math.fsum(values) / len(values)


def _layer(
    network: Network,
    resolution: Resolution,
    name: str,
    widths: Sequence[int],
    runs: BlockRuns,
    right: Sequence[Tensor],
) -> LayerSensitivity:
    assignment = resolution.assignments[name]
    weight = network.weight(assignment.site).to(assignment.site.dtype)  # exact: it was of this dtype
    kl: dict[int, float] = {}
    stored: dict[int, float] = {}
    for bits in widths:
        grid = dataclasses.replace(assignment.scheme.weight, bits=bits)
        rounded = quantize_with_search(weight, grid, _search(assignment.stage))
        with _replaced(network, resolution, assignment.site, rounded.dequantize().float()):
            kl[bits] = mean_kl(right, runs.logits())
        stored[bits] = _stored_bits(rounded, grid)
    return LayerSensitivity(
        name=name,
        shape=tuple(assignment.site.matrix_shape),
        elements=weight.numel(),
        kl=kl,
        bits_per_weight=stored,
    )


@contextmanager
def _replaced(network: Network, resolution: Resolution, site: Site, matrix: Tensor) -> Iterator[None]:
    """Let a site, and what stays tied to it, run on another matrix for a while."""
    tied = [network.by_name[name] for name, owner in resolution.ties.items() if owner == site.name]
    places = [(network.module(one)._parameters, one.parameter) for one in (site, *tied)]
    originals = [parameters[name] for parameters, name in places]
    parameter = nn.Parameter(site.layout.from_matrix(matrix, site.shape), requires_grad=False)
    try:
        for parameters, name in places:
            parameters[name] = parameter
        yield
    finally:
        for (parameters, name), original in zip(places, originals, strict=True):
            parameters[name] = original


def _place(runs: BlockRuns, site: Site, resolution: Resolution) -> int:
    """Where runs begin for a site: at its block, behind all for the head alone, else at the beginning."""
    return runs.position(site.block, at_the_end=site.role == "head" and site.name not in resolution.ties.values())


def _search(stage: Quantizer) -> RangeSearch:
    return without_importance(getattr(stage, "range_search", "minmax"))


def _stored_bits(rounded: QuantizedTensor, grid: Grid) -> float:
    """Bits of a weight with its share of scales, and of zeros in as many bits as the codes."""
    scales = rounded.scale.numel() * rounded.scale.element_size() * 8
    zeros = 0 if rounded.zero is None else rounded.zero.numel() * grid.bits
    return grid.bits + (scales + zeros) / rounded.codes.numel()
