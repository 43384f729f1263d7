"""What each layer may become, in how many bytes, and the recipe that says so: from config and file headers alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from goldstick.algorithms import Quantizer, Stage
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.rtn import RTN
from goldstick.checkpoint.entries import specs_nbytes
from goldstick.core.qtensor import scale_dtype
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError, UsageError
from goldstick.evaluation.looking_back import require_looking_back
from goldstick.evaluation.measurable import require_causal
from goldstick.formats import FORMATS
from goldstick.formats.base import StoredLayer
from goldstick.formats.native import NATIVE
from goldstick.jobs.plan.plan import Plan, make_plan
from goldstick.jobs.plan.planned_tensors import PlannedTensor
from goldstick.jobs.search.runnable import Rules
from goldstick.jobs.search.runtimes import Runtime, groups_of
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort
from goldstick.recipes.recipe import Export, Recipe
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import Targets, exactly

#: A layer that stays as it is.
FLOAT = "float"

Method = Literal["rtn", "gptq"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers that become the same.

    Attributes:
        sites: The layers.
        nbytes: What each may become, by the name of its scheme → bytes of their tensors, the largest last.
    """

    sites: tuple[Site, ...]
    nbytes: Mapping[str, int]

    @property
    def name(self) -> str:
        """What the page calls it."""
        return self.sites[0].name if len(self.sites) == 1 else " + ".join(site.name for site in self.sites)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """All that a search chooses among.

    Attributes:
        directory: The float checkpoint.
        runtime: What the result is for.
        method: How layers are rounded in the end.
        effort: How much the recipe does for it.
        groups: The layers.
        fixed: Bytes of all other tensors.
        weights: The number of the model's weights.
        source: Bytes of the source's tensors.
        calibration: The data of the recipe.
        exclude: Patterns of layers that stay float.
        rules: What the runtime refuses of them; ``None`` for nothing.
    """

    directory: Path
    runtime: Runtime
    method: Method
    effort: Effort
    groups: tuple[Group, ...]
    fixed: int
    weights: int
    source: int
    calibration: Calibration
    exclude: tuple[str, ...] = ()
    rules: Rules | None = None

    def recipe(self, chosen: Mapping[str, str]) -> Recipe:
        """The recipe that makes each site what is chosen: site name → scheme, or ``float``.

        Raises:
            RecipeError: Everything stays float.
        """
        sites = {site.name: site for group in self.groups for site in group.sites}
        rounded = {name: scheme for name, scheme in chosen.items() if scheme != FLOAT}
        inner = {name: scheme for name, scheme in rounded.items() if sites[name].role != "embedding"}
        outer = {name: scheme for name, scheme in rounded.items() if sites[name].role == "embedding"}
        stages: list[Stage] = []
        if inner and self.method == "gptq":
            stages.append(_stage(GPTQ(range_search=self.runtime.data_search), inner))  # type: ignore[arg-type]
        elif inner:
            stages.append(_stage(RTN(range_search=self.runtime.search), inner))
        if outer:
            stages.append(_stage(RTN(range_search=self.runtime.search), outer))
        if not stages:
            raise RecipeError("Everything stays float at this size; ask for less.")
        export = Export(format=self.runtime.format)
        recipe = Recipe(stages=tuple(stages), calibration=self.calibration, export=export)
        return recipe.with_effort(self.effort)


def _stage(stage: Quantizer, chosen: Mapping[str, str]) -> Quantizer:
    """A stage that makes layers what is chosen for them; what most become is its scheme, the rest its overrides."""
    general = Counter(chosen.values()).most_common(1)[0][0]
    overrides = dict[str, Scheme | str](exactly(chosen, general))
    return dataclasses.replace(
        stage, scheme=general, overrides=overrides, targets=Targets(include=tuple(chosen)), tie="keep"
    )


def _require_tokens(model: nn.Module) -> None:
    """Raise UsageError unless the model predicts the tokens of a text that goes on, by which losses are measured."""
    try:
        require_causal(model)
    except UsageError as error:
        raise UsageError(
            f"A search measures what a causal language model predicts, and a {type(model).__name__} is none. Give its "
            "layers their schemes by a recipe; 'goldstick sensitivity' says which layer needs how many bits."
        ) from error
    require_looking_back(model)


def find_layers(
    directory: Path,
    runtime: Runtime,
    *,
    method: Method,
    calibration: Calibration,
    schemes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    effort: Effort = "fast",
    require_use: bool = True,
    rules: Rules | None = None,
) -> Layers:
    """What the layers of a checkpoint may become for a runtime, and their bytes.

    Every linear layer is one, the head too, and the embedding where the runtime's format holds it quantized. What the
    runtime refuses of a layer, on each device that it is split over, is none of its choices.
    Convolutions and what goldstick leaves alone by itself (routers) stay float.

    Args:
        directory: The float checkpoint.
        runtime: What the result is for.
        method: How layers are rounded in the end.
        calibration: The data of the recipe.
        schemes: What to choose among, instead of all that the runtime runs.
        exclude: Patterns of layers that stay float.
        effort: How much the recipe does for it.
        require_use: Whether each of ``schemes`` must be of use for a layer.
        rules: What the runtime refuses; ``None`` for nothing.

    Raises:
        RecipeError: A scheme is unknown, or no layer can become any of them.
        SourceError: The directory is no readable float model.
    """
    names = tuple(dict.fromkeys((*(schemes or runtime.schemes), FLOAT)))
    parsed = {name: Scheme.parse(name) for name in names if name != FLOAT}
    if not parsed:
        raise RecipeError(
            "Layers may stay float in every search: name a scheme, such as w4a16-g32, that they can become."
        )
    plan = _whole_plan(directory, runtime, tuple(exclude))
    _require_tokens(plan.network.model)
    by_site: dict[str, list[PlannedTensor]] = {}
    for tensor in plan.tensors:
        if tensor.stored is not None:
            by_site.setdefault(tensor.stored.site, []).append(tensor)
    tied = {*plan.resolution.ties, *plan.resolution.ties.values()}
    sites = [site for site in plan.network.sites if site.name in by_site]
    found, refused = [], dict[str, str]()
    for group in groups_of(plan.network, sites, runtime):
        nbytes = {FLOAT: sum(_float_bytes(tensor) for site in group for tensor in by_site[site.name])}
        tensors = [(site, tensor) for site in group for tensor in by_site[site.name]]
        for name, scheme in parsed.items():
            sizes = [_bytes(tensor, scheme, runtime, tied) for _, tensor in tensors]
            known = [size for size in sizes if size is not None]
            if len(known) < len(sizes):
                continue
            stored = [(site, _stored(tensor, scheme, runtime)) for site, tensor in tensors]
            if rules is not None and (words := rules.refusal(plan, stored, FORMATS[runtime.format])):
                refused.setdefault(name, words)
                continue
            nbytes[name] = sum(known)
        found.append(Group(sites=group, nbytes=dict(sorted(nbytes.items(), key=lambda item: item[1]))))
    of_no_use = [name for name in parsed if not any(name in group.nbytes for group in found)]
    if of_no_use and ((schemes and require_use) or len(of_no_use) == len(parsed)):
        why = next((f" {refused[name]}" for name in of_no_use if name in refused), "")
        raise RecipeError(
            f"No layer of {directory} can become {' or '.join(of_no_use)} in the format {runtime.format}.{why}"
        )
    chosen = {tensor.name for tensors in by_site.values() for tensor in tensors}
    return Layers(
        directory=directory,
        runtime=runtime,
        method=method,
        effort=effort,
        groups=tuple(found),
        fixed=sum(tensor.bytes_after for tensor in plan.tensors if tensor.name not in chosen),
        weights=sum(tensor.source.shape.numel() for tensor in plan.tensors),
        source=plan.bytes_before,
        calibration=calibration,
        exclude=tuple(exclude),
        rules=rules,
    )


def _whole_plan(directory: Path, runtime: Runtime, exclude: tuple[str, ...]) -> Plan:
    """A plan that rounds all that may be rounded, to one scheme that nearly all layers can have.

    It is laid out natively, whatever the runtime reads, so that it is legal for every layer.
    """
    outer = ("@embedding",) if runtime.embeddings else ()
    targets = Targets(include=("*", *outer, *_heads(directory)), exclude=exclude)
    recipe = Recipe(stages=(RTN(scheme="w8a16", tie="keep", targets=targets),), export=Export(format=NATIVE.name))
    return make_plan(directory, recipe)


def _heads(directory: Path) -> tuple[str, ...]:
    """``@head`` where the model has a head with a weight of its own."""
    network = _network(directory)
    return ("@head",) if any(site.role == "head" and not site.tied_to for site in network.sites) else ()


def _network(directory: Path) -> Network:
    recipe = Recipe(stages=(RTN(scheme="w8a16"),), export=Export(format=NATIVE.name))
    return make_plan(directory, recipe).network


def _float_bytes(tensor: PlannedTensor) -> int:
    return tensor.source.shape.numel() * tensor.source.dtype.itemsize


def _stored(tensor: PlannedTensor, scheme: Scheme, runtime: Runtime) -> StoredLayer:
    """A tensor as the runtime's file has it when it becomes ``scheme``."""
    assert tensor.stored is not None
    ggml = runtime.search == "ggml"
    return dataclasses.replace(tensor.stored, scheme=scheme, fractional_zeros=ggml, float16_ranges=ggml)


def _bytes(tensor: PlannedTensor, scheme: Scheme, runtime: Runtime, tied: set[str]) -> int | None:
    """Bytes of a tensor that becomes ``scheme``; ``None`` where it cannot."""
    assert tensor.stored is not None and tensor.assignment is not None
    storage = FORMATS[runtime.format]
    if not scheme.weight.divides(tensor.stored.shape[-1]) or scheme.activation:
        return None
    layer = _stored(tensor, scheme, runtime)
    if storage.refuses(layer) is not None:
        return None
    if tensor.assignment.site.name in tied and storage.refuses_together([layer], {"head": layer.site}) is not None:
        return None
    return specs_nbytes(storage.specs(layer, scale_dtype(tensor.source.dtype)))
