"""Run: do what a resolution says to a network in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from goldstick import surgery
from goldstick.algorithms import RTN, BlockReconstruction, Quantizer, Stage, Validate
from goldstick.algorithms.ranges import RangeSearch
from goldstick.algorithms.stage import BiasCorrector, CacheQuantizer
from goldstick.calibration.kv_ranges import KVRecorder
from goldstick.calibration.sweep import sweep
from goldstick.calibration.task import Assignment, Work
from goldstick.calibration.unreached import refuse_nothing_reached
from goldstick.core.edits import Edit, Fold, Quantize
from goldstick.core.error import WeightError, weight_error
from goldstick.core.input_ends import InputEnds
from goldstick.core.input_squares import InputSquares
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.progress import Progress as Progress
from goldstick.core.progress import quiet as quiet
from goldstick.core.references import deep_copy
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.shared_scales import Reach, with_reach
from goldstick.structure.network import Network, Site

#: Told of a site and the squares of its inputs.
Measured = Callable[[Site, InputSquares], None]


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """What became of one site.

    Attributes:
        assignment: What was to happen to it.
        error: How far the quantized weight lies from the original.
        notes: What the algorithm found out on the way.
    """

    assignment: Assignment
    error: WeightError
    notes: Mapping[str, float | str]


def decide(
    stage: Quantizer, site: Site, weight: Tensor, scheme: Scheme, state: Any = None, reach: Tensor | None = None
) -> tuple[Quantize, WeightError]:
    """What a stage decides for one matrix [..., out, in], and its error.

    Args:
        stage: The stage.
        site: Where the matrix belongs.
        weight: The matrix.
        scheme: What it becomes.
        state: What the stage saw there; ``None`` for data-free stages.
        reach: The largest magnitude of what shares a scale of scales with it; ``None`` where nothing does.

    Raises:
        QuantizationError: The weight holds NaN or infinity; the message names the site.
    """
    try:
        edits = stage.solve(site, weight, state, scheme)
    except QuantizationError as error:
        raise QuantizationError(
            f"{site.name} {tuple(weight.shape)} cannot be quantized: {error} Check the source checkpoint, or exclude "
            "this layer (targets: {exclude: [...]})."
        ) from error
    edit = _the_quantization(edits, site)
    edit = replace(edit, tensor=with_reach(edit.tensor, weight, reach))
    return edit, _error(site, weight, edit)


def _error(site: Site, weight: Tensor, edit: Quantize) -> WeightError:
    error = weight_error(weight, edit.tensor)
    if not math.isfinite(error.max_abs):  # the sum of squares may overflow where no value does
        dtype = str(edit.tensor.scale.dtype).removeprefix("torch.")
        raise QuantizationError(
            f"{site.name} {tuple(weight.shape)} cannot be quantized: it reaches {float(weight.abs().max()):.6g}, and "
            f"rounded values would be larger than {dtype} holds. Convert the model to bfloat16 or float32 (load it "
            "with transformers and that dtype, and save_pretrained), or exclude this layer (targets: {exclude: [...]})."
        )
    return error


def _the_quantization(edits: Sequence[Edit], site: Site) -> Quantize:
    found = [edit for edit in edits if isinstance(edit, Quantize)]
    if len(found) != 1:
        raise QuantizationError(f"The algorithm gave {len(found)} quantizations for {site.name} instead of one.")
    return found[0]


def round_sites(
    network: Network,
    assignments: Sequence[Assignment],
    progress: Progress = quiet,
    weights: dict[str, Tensor] | None = None,
) -> dict[str, SiteResult]:
    """Quantize sites with stages that need no data, in place; site name → what became of it.

    ``weights``, where given, is filled with the float weight of each.
    """
    results = {}
    reach = reach_of(network, assignments)
    for index, assignment in enumerate(assignments):
        progress("quantizing", index, len(assignments))
        site = assignment.site
        state = assignment.importance or assignment.stage.attach(site)
        shared = reach.of(site.name)
        edit, error = decide(assignment.stage, site, network.weight(site), assignment.scheme, state, shared)
        if weights is not None:
            weights[site.name] = network.weight(site)
        surgery.apply(network, [edit])
        results[site.name] = SiteResult(assignment=assignment, error=error, notes=edit.notes)
    progress("quantizing", len(assignments), len(assignments))
    return results


def tie_up(network: Network, resolution: Resolution) -> None:
    """Let tied sites run on the quantized weight of their owner, and cut the ties that a recipe unties."""
    for tied, owner in resolution.ties.items():
        surgery.tie(network, network.by_name[tied], network.by_name[owner])
    if resolution.stores_ties_apart(network):
        surgery.forget_ties(network)
    elif resolution.ties:
        surgery.forget_ties(network, resolution.ties)


def run(
    network: Network,
    resolution: Resolution,
    progress: Progress = quiet,
    batches: Sequence[Mapping[str, Tensor]] = (),
    recorder: KVRecorder | None = None,
    trained: Mapping[str, SiteResult] | None = None,
    measured: Measured | None = None,
    weights: dict[str, Tensor] | None = None,
) -> dict[str, SiteResult]:
    """Quantize every assigned site of a network, in place; ties follow. A rotation has been made before, and training.

    Data-free stages go first, then one sweep over the blocks for all that look at data.

    Args:
        network: The network.
        resolution: What is to happen.
        progress: Told what is done.
        batches: Calibration data: keyword arguments of the model's forward.
        recorder: Sees the keys and values, for a recipe with a static KV cache.
        trained: What became of sites that were trained and quantized before; they count as done.
        measured: As in :func:`calibrated_work`.
        weights: As in :func:`calibrated_work`.

    Returns:
        Site name → what became of it, in the order of the network's sites.

    Raises:
        RecipeError: A stage looks at data and there are none.
        StructureError: No batch reached any of the sites that are to be calibrated.
    """
    chosen = [resolution.assignments[site.name] for site in network.sites if site.name in resolution.assignments]
    results: dict[str, SiteResult] = dict(trained or {})

    def note(task: Assignment, edit: Quantize, error: WeightError) -> None:
        results[task.site.name] = SiteResult(assignment=task, error=error, notes=edit.notes)

    work = calibrated_work(network, resolution, note, measured, weights)
    looking: list[Stage] = [task.stage for task in work.tasks.values()]
    if recorder is not None:
        looking += resolution.of(CacheQuantizer)
    if looking and not batches:
        raise RecipeError(f"{looking[0].name} looks at data, and there are none: give data= (or --dataset).")
    surgery.leave_nested_tensors(network.model, [task.site for task in work.tasks.values()])
    original = deep_copy(network.model) if work.needs_float_inputs else None  # before the first layer is rounded
    free = [assignment for assignment in chosen if assignment.site.name not in {*work.tasks, *results}]
    results.update(round_sites(network, free, progress, weights))
    if looking:
        sweep(network, work, batches, progress, recorder, original)
        refuse_nothing_reached({name: results[name].notes for name in work.tasks})
    tie_up(network, resolution)
    return {assignment.site.name: results[assignment.site.name] for assignment in chosen}


def _observers(state: Any) -> list[InputObserver]:
    """The observers of a state, a matrix each; none where it holds others, such as those of a convolution's ends."""
    plain = state.plain if isinstance(state, OutputGroups) else state
    found = list(plain) if isinstance(plain, list) else [plain]
    listens = all(isinstance(one, InputObserver) and not isinstance(one, InputEnds) for one in found)
    return found if listens else []


def reach_of(network: Network, assignments: Iterable[Assignment]) -> Reach:
    """The largest magnitudes of the weights that share a scale of scales, in a network."""
    schemes = {assignment.site.name: assignment.scheme for assignment in assignments}
    return Reach(schemes, lambda name: network.weight(network.by_name[name]))


def calibrated_work(
    network: Network,
    resolution: Resolution,
    note: Callable[[Assignment, Quantize, WeightError], None],
    measured: Measured | None = None,
    weights: dict[str, Tensor] | None = None,
) -> Work:
    """What a resolution leaves to a sweep: what looks at data, and with stages that smooth all that lies in blocks.

    Args:
        network: The network; its weights are looked at when their block is solved.
        resolution: What is to happen.
        note: Told what was decided for each site, and its error.
        measured: Told how large the inputs of each site are that a stage looks at.
        weights: Filled with the float weight that each site was decided from, [..., out, in]; not where ``None``.
    """
    reconstruction, corrected = resolution.first(BlockReconstruction), resolution.sites_of(BiasCorrector)
    finishes = reconstruction or resolution.first(Validate)
    tasks = {
        name: assignment
        for name, assignment in resolution.assignments.items()
        if not assignment.stage.trains
        and (
            assignment.stage.needs_inputs(assignment.scheme)
            or assignment.multiplied
            or name in corrected
            or ((resolution.smoothing or finishes) and assignment.site.block is not None)
        )
    }

    reach = reach_of(network, tasks.values())

    def solve(task: Assignment, weight: Tensor, state: Any, notes: Mapping[str, float | str]) -> Quantize:
        state = task.importance or state
        edit, error = decide(task.stage, task.site, weight, task.scheme, state, reach.of(task.site.name))
        edit = replace(edit, notes={**edit.notes, **notes})
        if weights is not None:
            weights[task.site.name] = weight.clone()
        note(task, edit, error)
        return edit

    def measure(task: Assignment, state: Any) -> None:
        if measured is not None and (seen := _observers(state)):
            measured(task.site, InputSquares.of(seen))

    def revise(task: Assignment, weight: Tensor, edit: Quantize) -> None:
        note(task, edit, _error(task.site, weight, edit))

    def absorbed(fold: Fold) -> None:
        if weights is not None and fold.producer in weights:
            weights[fold.producer] = fold.divide(weights[fold.producer])

    def rounded(task: Assignment, weight: Tensor) -> Quantize:
        blocks = task.scheme.weight.superblock is not None or task.stage.float16_ranges
        search: RangeSearch = "ggml" if blocks else "mse"
        stage = RTN(scheme=task.scheme, range_search=search)
        return decide(stage, task.site, weight, task.scheme, reach=reach.of(task.site.name))[0]

    return Work(
        tasks=tasks,
        decide=solve,
        smoothing=resolution.smoothing,
        reconstruction=reconstruction,
        validation=resolution.first(Validate),
        rounded=rounded,
        corrected=corrected,
        measure=measure,
        revise=revise,
        absorbed=absorbed,
    )
