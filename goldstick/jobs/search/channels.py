"""Which channels may go before layers are rounded, what the model loses without them, and how many go at a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldstick.algorithms.channel_choice import fewest
from goldstick.errors import RecipeError, UsageError
from goldstick.hf.example_inputs import inputs_for
from goldstick.jobs.search.knapsack import Front, Option
from goldstick.jobs.search.layers import Group, Layers
from goldstick.jobs.search.search import Search
from goldstick.structure.network import Network
from goldstick.structure.pruning.prunable import Prunable
from goldstick.structure.pruning.reading_masks import reading_masks
from goldstick.structure.pruning.search import find_prunable

#: Parts of a layer's channels that it is tried without.
_PARTS = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)
#: What is read of a layer's channels stays a multiple of this, so that common group sizes divide it.
_MULTIPLE = 32
#: Points of the front of layers that lose channels together.
_MOST_POINTS = 128


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """Channels that can go one by one, with all that makes and reads them.

    Attributes:
        group: The channels.
        losses: How many of them stay → the mean KL without the others, all else as it was; all of them first.
    """

    group: Prunable
    losses: Mapping[int, float]

    @property
    def modules(self) -> frozenset[str]:
        """The layers that make and read the channels."""
        return frozenset(member.module for member in self.group.members)


def prunable_groups(layers: Layers, model: nn.Module) -> list[Prunable]:
    """The channels that searched layers make and other searched layers read, but for heads.

    Args:
        layers: What is searched.
        model: The model, in memory.

    Raises:
        RecipeError: There are none.
    """
    every = [site for group in layers.groups for site in group.sites]
    sites = {site.module for site in every if site.role == "inner" and site.block is not None}
    inputs = {**(inputs_for(model) or {}), "use_cache": False}
    groups, refused = find_prunable(Network(model), (), inputs, layers=sites)
    found = [one for one in groups if not one.heads and {member.module for member in one.members} <= sites]
    if not found:
        layer, reason = next(iter(refused.items()), ("the model", "it has no such layers"))
        raise RecipeError(f"No layer can lose channels here ({layer}: {reason}). Search without pruning.")
    return found


def find_prospects(search: Search, groups: Sequence[Prunable], scores: Mapping[str, Tensor]) -> list[Prospect]:
    """Measure what the model loses without parts of the channels, those of the lowest scores."""
    found = []
    for number, group in enumerate(groups):
        search.progress("measuring channels", number, len(groups))
        own = {group.name: scores[group.name]}
        losses = {group.units: 0.0}
        for kept in _numbers(group):
            losses[kept] = _loss_without(search, group, fewest(own, {group.name: kept})[group.name])
        found.append(Prospect(group=group, losses=losses))
    search.progress("measuring channels", len(groups), len(groups))
    return found


def _numbers(group: Prunable) -> list[int]:
    """How many channels may stay, the most first."""
    step = group.step(_MULTIPLE if group.units >= 4 * _MULTIPLE else 8)
    tried = [round(group.units * (1 - part) / step) * step for part in _PARTS]
    return [kept for kept in dict.fromkeys(tried) if 0 < kept < group.units]


def _loss_without(search: Search, group: Prunable, gone: Sequence[int]) -> float:
    key = f"channels {group.name} {group.units - len(gone)}"
    known: float | None = search.journal.get(key)
    if known is None:
        mask = torch.ones(group.units + 1)
        mask[list(gone)] = 0
        with reading_masks(search.searched.model, group, mask):
            known = float(f"{fmean(search.scores.rows.kl()):.6g}")
        search.journal.keep(key, known)
    return known


def channels_kept(search: Search, prospects: Sequence[Prospect], room: int, left: float) -> dict[str, int]:
    """How many channels layers keep, of those that lose some, by an exact knapsack over channels and schemes.

    Losses are taken to add up; bytes of a layer without channels are its bytes by their part. What is found is searched
    anew and judged as a whole.

    Args:
        search: What every scheme of every layer costs.
        prospects: The channels.
        room: Bytes that all layers may take.
        left: What part is left, where a recipe is carried out, of the losses of layers that are rounded each alone.

    Raises:
        UsageError: Nothing is so small.
    """
    losses = {pair: left * loss for pair, loss in search.scores.losses().items()}
    owners: dict[str, Prospect] = {}
    for group in search.layers.groups:
        for one in prospects:
            if any(site.module in one.modules for site in group.sites):
                owners.setdefault(group.name, one)
    alone = [group for group in search.layers.groups if group.name not in owners]
    points = [_points(one, [g for g in search.layers.groups if owners.get(g.name) is one], losses) for one in prospects]
    front = Front(
        [[Option(nbytes=nbytes, loss=loss) for nbytes, loss, _ in one] for one in points]
        + [[Option(nbytes=size, loss=losses[g.name, scheme]) for scheme, size in g.nbytes.items()] for g in alone]
    )
    choice = front.within(room)
    if choice is None:
        least = int(front.nbytes[0]) - room
        raise UsageError(
            f"The smallest this model can be is about {least:,} bytes more than what is asked for, also with half of "
            "the channels that can go. Ask for more, or give smaller schemes."
        )
    kept = {one.group.name: points[place][choice.picks[place]][2] for place, one in enumerate(prospects)}
    return {one.group.name: kept[one.group.name] for one in prospects if kept[one.group.name] < one.group.units}


def _points(one: Prospect, groups: Sequence[Group], losses: Mapping[tuple[str, str], float]) -> list[Any]:
    """Bytes, loss and channels kept of the best choices for layers that lose channels together, the smallest first."""
    found: list[tuple[int, float, int]] = []
    for kept, loss in one.losses.items():
        part = kept / one.group.units
        front = Front(
            [
                [Option(nbytes=int(size * part), loss=losses[g.name, scheme]) for scheme, size in g.nbytes.items()]
                for g in groups
            ]
        )
        found += [(int(size), float(own) + loss, kept) for size, own in zip(front.nbytes, front.losses, strict=True)]
    best: list[tuple[int, float, int]] = []
    for point in sorted(found):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    places = np.unique(np.linspace(0, len(best) - 1, _MOST_POINTS).round().astype(int))
    return [best[place] for place in places]
