"""Resolve: which stage does what to which site, and why the rest is left alone; from shapes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.algorithms.base import Algorithm, Quantizer, rounds, smooths
from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.algorithms.stage import AnyStage, Place, Stage, of_kind
from goldstick.algorithms.validate import Validate
from goldstick.calibration.task import Assignment as Assignment
from goldstick.calibration.task import Step
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.recipes.group_sizes import regrouped, ways_out
from goldstick.recipes.ignored import ignored
from goldstick.recipes.mixture import with_mixture
from goldstick.recipes.order import misplaced, unfinishable
from goldstick.recipes.unfit_schemes import some, unfit_schemes
from goldstick.structure.network import Network, Site
from goldstick.structure.plain_layers import Reading


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """Everything a recipe means for a network.

    Attributes:
        assignments: Site name → what happens to it.
        ties: Sites that will run on another's quantized weight: site name → name of the owner.
        untied: Whether a tied weight is quantized on one side only.
        ignored: Parameter or buffer name → why it stays as it is.
        steps: Every stage in its order, with the sites it acts on. Where one of them prunes, what they mean is
            resolved again for what is left.
    """

    assignments: dict[str, Assignment]
    ties: dict[str, str]
    untied: bool
    ignored: dict[str, str]
    steps: tuple[Step[Stage], ...] = ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in their order."""
        return tuple(step.stage for step in self.steps)

    @property
    def trains(self) -> bool:
        """Whether a stage trains the network."""
        return any(stage.trains for stage in self.stages)

    @property
    def has_epochs(self) -> bool:
        """Whether a run that is stopped can go on behind an epoch of a stage."""
        return self.trains or any(stage.place is Place.END for stage in self.stages)

    @property
    def smoothing(self) -> tuple[Step[Algorithm], ...]:
        """The stages that scale the inputs of layers before these are quantized."""
        return _smoothing(self.steps)

    @property
    def holdout(self) -> float:
        """Which share of the calibration batches is held out by a stage, at the most; 0 for none."""
        held = [*(one.holdout for one in self.of(Validate)), *(one.holdout for one in self.of(BlockReconstruction))]
        return max(held, default=0.0)

    def of(self, kind: type[AnyStage]) -> tuple[AnyStage, ...]:
        """The stages of a kind, in their order."""
        return of_kind(self.stages, kind)

    def first(self, kind: type[AnyStage]) -> AnyStage | None:
        """The stage of a kind of which a recipe has one at most."""
        return next(iter(self.of(kind)), None)

    def sites_of(self, kind: type[Stage]) -> frozenset[str]:
        """Names of the sites that stages of a kind act on."""
        return frozenset().union(*(step.sites for step in self.steps if isinstance(step.stage, kind)))

    def on_embeddings(self, network: Network) -> bool:
        """Whether a site runs on the quantized weight of an embedding."""
        return any(network.by_name[owner].layout is Layout.EMBEDDING for owner in self.ties.values())

    def stores_ties_apart(self, network: Network) -> bool:
        """Whether the model is loaded as one that ties nothing: what else it ties is stored under each of its names."""
        return self.untied or self.on_embeddings(network)


def resolve(stages: Sequence[Stage], network: Network) -> Resolution:
    """What the stages mean for the network; reads no weight. All that is illegal is said at once.

    Raises:
        RecipeError: A pattern matches nothing, a site is meant twice, a group size does not divide, a tie is undecided.
        StructureError: A stage quantizes, and more than a fifth of the model's matrices are of a kind goldstick does
            not recognise.
    """
    problems = misplaced(stages) + _kept_but_cut(stages, network)
    assignments: dict[str, Assignment] = {}
    skipped: dict[str, str] = {}
    steps: list[Step[Stage]] = []
    for index, stage in enumerate(stages):
        place = f"stages[{index}].{stage.name}"
        try:
            sites = stage.sites(network)
        except RecipeError as error:
            problems.append(f"{place}: {error}")
            continue
        skipped.update(stage.spared(network))
        meant = {site.name for site in sites}
        if smooths(stage):
            meant = {site.name for site in sites if site.product} - network.shared()
        if rounds(stage):
            stage, left = with_mixture(stage, sites, network)
            skipped.update(left)
            sites = [site for site in sites if site.parameter_name not in left]
            _assign(place, stage, sites, assignments, skipped, problems)
        steps.append(Step(stage=stage, sites=frozenset(meant)))
    smoothing = _smoothing(steps)
    problems += unfit_schemes(assignments)
    problems += _smoothed_though_trained(assignments, smoothing)
    problems += unfinishable(stages, [found.scheme for found in assignments.values() if found.site.block])
    ties, untied = _resolve_ties(network, assignments, problems)
    if problems:
        numbered = " ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        raise RecipeError(problems[0] if len(problems) == 1 else f"{len(problems)} things are illegal. {numbered}")
    assignments = _with_multipliers(assignments, smoothing)
    return Resolution(
        assignments=assignments,
        ties=ties,
        untied=untied or bool(network.cut),
        ignored=ignored(network, [stage for stage in stages if rounds(stage)], set(assignments) | set(ties), skipped),
        steps=tuple(steps),
    )


def _smoothing(steps: Sequence[Step[Stage]]) -> tuple[Step[Algorithm], ...]:
    return tuple(Step(stage=step.stage, sites=step.sites) for step in steps if smooths(step.stage))


def _kept_but_cut(stages: Sequence[Stage], network: Network) -> list[str]:
    """Stages that want a tie kept which the rotation cuts."""
    return [
        f"stages[{index}].{stage.name}: 'tie: keep' cannot be, since rotating gives {network.cut[0]} a weight of its "
        "own; leave 'tie' out."
        for index, stage in enumerate(stages)
        if network.cut and isinstance(stage, Quantizer) and stage.tie == "keep"
    ]


def _assign(
    place: str,
    stage: Quantizer,
    sites: Sequence[Site],
    assignments: dict[str, Assignment],
    skipped: dict[str, str],
    problems: list[str],
) -> None:
    """Add a stage's sites to ``assignments`` or ``skipped``, and what is wrong with it to ``problems``."""
    twice, indivisible = [], []
    unfit: list[tuple[Scheme, int]] = []
    for site in sites:
        scheme, note = _for_forward(site, stage.scheme_for(site), stage.trains)
        grids = [grid for grid in (scheme.weight, scheme.activation) if grid is not None]
        size = next((grid.superblock or grid.group_size for grid in grids if not grid.divides(site.in_features)), None)
        what = f"{site.in_features} inputs do not divide into groups of {size}"
        if site.name in assignments:
            twice.append(site.name)
        elif size is None:
            assignments[site.name] = Assignment(site=site, stage=stage, scheme=scheme, note=note)
        elif stage.group_size_mismatch == "skip":
            skipped[site.parameter_name] = f"skipped: {what}"
        elif fitted := regrouped(scheme, site.in_features, stage.group_size_mismatch):
            instead, how = fitted
            note = "; ".join([*([note] if note else []), f"{how}: {what}"])
            assignments[site.name] = Assignment(site=site, stage=stage, scheme=instead, note=note)
        else:
            indivisible.append(f"{site.name} ({site.in_features} inputs, groups of {size})")
            unfit.append((scheme, site.in_features))
    if twice:
        problems.append(
            f"{place}: {some(twice)} would be quantized twice, since a stage before does it already. Exclude such "
            "layers from one of the stages (targets: {exclude: [...]})."
        )
    if indivisible:
        problems.append(
            f"{place}: the group size does not divide the inputs of {some(indivisible)}. Decide what such layers "
            f"become: {ways_out(unfit)} (the same as 'group_size_mismatch:' in the recipe), or choose a group size "
            "that divides."
        )


def _for_forward(site: Site, scheme: Scheme, trained: bool) -> tuple[Scheme, str]:
    """What a site becomes that its forward can do, and why where that is less than the recipe says."""
    if site.layout in (Layout.EMBEDDING, Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS):
        return scheme, ""
    notes = [] if site.product else ["its forward reads the numbers of the weight: rounded without data"]
    int8 = scheme.activation is not None and scheme.activation.integers and scheme.activation.bits == 8
    plain = site.layout.multiplied or (int8 and not trained)  # training rounds the inputs of linear layers alone
    if scheme.activation and not (site.takes_rounded_input and plain):
        notes.append(f"weight only: {_kind(site)} takes no {scheme.activation.bits}-bit activations")
        scheme = dataclasses.replace(scheme, activation=None)
    return scheme, "; ".join(notes)


def _kind(site: Site) -> str:
    if not site.product:
        return "such a forward"
    if site.layout is Layout.CONVOLUTION and not site.torchs:
        return "a convolution along three sides" if len(site.shape) > 4 else "a convolution with a forward of its own"
    return f"such a {site.layout.value.replace('_', ' ')}"


def _smoothed_though_trained(assignments: dict[str, Assignment], smoothing: Sequence[Step[Algorithm]]) -> list[str]:
    """Stages that scale inputs of layers which training has turned into codes before."""
    trained = {name for name, found in assignments.items() if found.stage.trains}
    return [
        f"{one.stage.name} would scale the inputs of {some(sorted(both))}, whose codes are trained; exclude them."
        for one in smoothing
        if (both := one.sites & trained)
    ]


def _with_multipliers(
    assignments: dict[str, Assignment], smoothing: Sequence[Step[Algorithm]]
) -> dict[str, Assignment]:
    """The assignments, with those marked whose inputs may be multiplied: what is stored is known before the run."""
    targeted = {name for one in smoothing if one.stage.multiplies for name in one.sites}
    return {
        name: dataclasses.replace(
            found, multiplied=name in targeted and found.site.layout.multiplied and found.site.reading is Reading.INPUT
        )
        for name, found in assignments.items()
    }


def _resolve_ties(
    network: Network, assignments: dict[str, Assignment], problems: list[str]
) -> tuple[dict[str, str], bool]:
    by_parameter = {site.parameter_name: site for site in network.sites}
    ties: dict[str, str] = {}
    untied = False
    for site in [site for site in network.sites if site.tied_to]:
        owner = by_parameter.get(site.tied_to or "")
        chosen = assignments.get(site.name) or (assignments.get(owner.name) if owner else None)
        if owner is None or chosen is None:
            continue
        both = _one_layer_twice(site, owner) and {site.name, owner.name} <= set(assignments)
        alike = both and assignments[site.name] == dataclasses.replace(assignments[owner.name], site=site)
        if chosen.stage.tie == "untie":
            untied = True
        elif chosen.stage.tie == "error" and not alike:
            problems.append(
                f"{site.name} shares its weight with {owner.name}, and the recipe quantizes {chosen.site.name}. "
                "Decide: 'tie: keep' quantizes both ends as one weight, 'tie: untie' quantizes only what is targeted "
                "and stores the other end as a float copy."
            )
        elif chosen.scheme.static_input:
            problems.append(
                f"{site.name} and {owner.name} share one quantized weight with 'tie: keep', and {chosen.scheme.label} "
                "gives that weight one input only. Use a scheme such as w8a16 in 'overrides', or 'tie: untie'."
            )
        elif owner.layout is not Layout.EMBEDDING and not _one_layer_twice(site, owner):
            problems.append(
                f"'tie: keep' is for embeddings and for layers of one kind, and {owner.name} and {site.name} are "
                "neither. Use 'tie: untie'."
            )
        elif (other := assignments.get(owner.name, chosen)).scheme != chosen.scheme:
            problems.append(
                f"{site.name} and {owner.name} are one weight, and 'tie: keep' leaves it one, but the recipe makes it "
                f"{chosen.scheme.label} here and {other.scheme.label} there. Give both one scheme, or 'tie: untie'."
            )
        else:
            assignments.pop(site.name, None)
            assignments[owner.name] = dataclasses.replace(chosen, site=owner)
            ties[site.name] = owner.name
    return ties, untied


def _one_layer_twice(site: Site, owner: Site) -> bool:
    """Whether two sites that share a weight do the same with it, so that both can run on one quantized weight."""
    alike = (site.layout, site.parameter, site.shape) == (owner.layout, "weight", owner.shape)
    return alike and not site.layout.fused and site.layout is not Layout.EMBEDDING
