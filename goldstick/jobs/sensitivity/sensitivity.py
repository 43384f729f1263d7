"""Sensitivity: how much the output of a model changes when one layer is rounded, for every layer and choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from goldstick.algorithms.base import rounds
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.stage import Rotation, of_kind
from goldstick.calibration.task import Assignment
from goldstick.core.agreement import require_same, sizes_of
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.torch_modes import as_written
from goldstick.errors import RecipeError
from goldstick.jobs.load.load import load_float
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.jobs.sensitivity.choices import assignments_of, in_order, search_of, stored_bits
from goldstick.jobs.sensitivity.measures import measure_for
from goldstick.jobs.sensitivity.tried_on import tried_on
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.idle import refuse_idle
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.report.sensitivity import Choice, LayerSensitivity, Sensitivity
from goldstick.structure.network import Network, Site


@as_written()
def measure_sensitivity(
    directory: Path,
    recipe: Recipe,
    tried: Sequence[Choice],
    text: Calibration,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    data_dir: Path | None = None,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Sensitivity:
    """Round every layer that a recipe targets to nearest, alone, in each way, and compare the model's predictions.

    The figure is the mean over all predictions of KL(p ‖ q), p the float model's distribution of the next token, or of
    an image's class, and q that of the model with one layer rounded, on the recipe's grid with another number of bits
    or to a named scheme. Of models that give something else it is the mean over their outputs of the squared error,
    relative to the output's squares. Weights alone are rounded, in the dtype they are stored in; everything is computed
    in float32, the sums in float64. The float model's answers are computed once; a layer's runs begin at its block.

    Args:
        directory: A float checkpoint.
        recipe: Names the layers, their grid and the range search (``imatrix`` counts as ``mse``).
        tried: Bits of the recipe's grid, each 1 to 8, or names of schemes and mixtures, such as ``nvfp4a16`` and
            ``q4_k_m``; of a scheme the weights' grid counts. Block types of GGUF files are rounded by ggml's search.
        text: The data: text, or what the model reads.
        inputs: Keyword arguments of the model's forward, in the place of data.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.
        ranks: Who does it together, layer by layer; all of them get the result.

    Raises:
        RecipeError: The recipe rounds nothing, rotates, or is illegal for this model, as may be a scheme.
        UsageError: A width is no number of bits, or the recipe's grid has no bits to choose.
        DataError: The data are missing, malformed, too few, or not for this model.
        SourceError: The directory is no readable float model.
    """
    choices = in_order(tried)
    stages = [stage for stage in recipe.stages if rounds(stage)]
    if not stages or of_kind(recipe.stages, Rotation):
        problem = "rotates, and so rounds other weights than the model has" if stages else "rounds no layer"
        raise RecipeError(f"The recipe {problem}; give one that rounds the model's own layers, such as rtn-w4a16-g128.")
    ranks = ranks or Ranks()
    model = load_float(directory)
    network = Network(model)
    resolution = resolve(stages, network)
    refuse_idle(network, resolution)
    data = tried_on(model, directory, text, inputs, data_dir)
    asked = [recipe.model_dump(mode="json", exclude={"calibration"}), [str(choice) for choice in choices]]
    require_same(ranks, {"model": sizes_of(directory), "recipe or schemes": asked, "text": data.fingerprint})
    batches = [_in_float32(batch) for batch in data.batches]
    measure = measure_for(model.float(), batches[0])
    runs = BlockRuns(model, batches, measure=measure)
    right = list(runs.answers())
    assigned = assignments_of(choices, stages, resolution, network)
    chosen = [site for site in network.sites if all(site.name in assigned[choice] for choice in choices)]
    if not chosen:
        raise RecipeError(f"No layer can become each of {', '.join(map(str, choices))}; try them one at a time.")
    places = {site.name: _place(runs, site, resolution) for site in chosen}
    order = sorted(places, key=lambda name: places[name])

    def apart() -> float:
        return measure.apart(right, runs.answers())

    def measured(number: int) -> LayerSensitivity:
        name = order[number]
        progress("sensitivity", number, len(places))
        runs.start_at(places[name])
        return _layer(network, resolution, {choice: assigned[choice][name] for choice in choices}, apart)

    found = dict(zip(order, ranks.each([runs.cost(places[name]) for name in order], measured), strict=True))
    progress("sensitivity", len(places), len(places))
    first = resolution.assignments[chosen[0].name]
    grid = stages[0].scheme_for(chosen[0]).weight  # that of the recipe, also where a layer has narrower groups
    return Sensitivity(
        model=str(directory),
        inputs=data.words,
        tokens=measure.predictions(right),
        measure=measure.name,
        grid={
            "granularity": grid.granularity,
            "group_size": grid.group_size,
            "symmetric": grid.symmetric,
            "range_search": search_of(first),
        },
        widths=choices,
        layers=tuple(found[name] for name in places),
    )


def _in_float32(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}


def _layer(
    network: Network,
    resolution: Resolution,
    assigned: Mapping[Choice, Assignment],
    apart: Callable[[], float],
) -> LayerSensitivity:
    site = next(iter(assigned.values())).site
    weight = network.weight(site).to(site.dtype)  # exact: it was of this dtype
    kl: dict[Choice, float] = {}
    stored: dict[Choice, float] = {}
    for choice, assignment in assigned.items():
        search = search_of(assignment)
        plain = search == "minmax" and assignment.scheme.floats
        rounded = quantize_with_search(weight, assignment.scheme.weight, search, plain=plain)
        with _replaced(network, resolution, site, rounded.dequantize().float()):
            kl[choice] = apart()
        stored[choice] = stored_bits(rounded, halves=assignment.stage.float16_ranges)
    return LayerSensitivity(
        name=site.name,
        shape=tuple(site.matrix_shape),
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
