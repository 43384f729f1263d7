"""Losses in place: what changes cost where all other changes are there too, and the choice made again by these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from goldstick.jobs.search.knapsack import Front, Option
from goldstick.jobs.search.layers import Group, Layers
from goldstick.jobs.search.scores import unbeaten

Losses = Mapping[tuple[str, str], float]
Chosen = Mapping[str, str]

#: What a change must gain, in parts of the largest difference, where fewer changes are wanted.
_LEAST_GAINS = (0.0, *(4.0**-power for power in reversed(range(6))))


def choose_in_place(
    layers: Layers,
    alone: Losses,
    chosen: Chosen,
    room: int,
    together: Callable[[Sequence[Chosen]], list[float]],
    fits: Callable[[Chosen], bool],
    rounds: int,
    tolerance: float = 0.0,
) -> dict[str, str]:
    """A choice that loses no more as a whole, by what changes of one group cost in the place of the choice.

    Losses alone do not say how much of an error later layers make larger or smaller, and where losses are large they do
    not add up. So the next smaller and the next larger candidate of every group is measured with all others as chosen,
    and the knapsack is solved again over these differences. Around a choice they add up better, but the more changes
    the less: where the whole gains less than half of the sum, half as many changes are tried.

    Args:
        layers: The groups.
        alone: (group, scheme) → its loss alone, which says what is no candidate.
        chosen: Group → scheme.
        room: Bytes that all groups may take.
        together: What choices lose with all their changes.
        fits: Whether the files of a choice, headers counted, are small enough.
        rounds: How often to do it, at most.
        tolerance: Nothing is done where the whole differs from the sum by no more than this part of it.
    """
    found = dict(chosen)
    if not rounds:
        return found
    (least,) = together([found])
    added = sum(alone[one] for one in found.items())
    if abs(least - added) <= tolerance * added:
        return found
    for _ in range(rounds):
        pairs = [(group, scheme) for group in layers.groups for scheme in _beside(group, alone, found[group.name])]
        losses = together([found | {group.name: scheme} for group, scheme in pairs])
        more = {(group.name, scheme): loss - least for (group, scheme), loss in zip(pairs, losses, strict=True)}
        better, loss = _best(layers, more, found, least, room, together, fits)
        if loss >= least:
            break
        found, least = better, loss
    return found


def _beside(group: Group, alone: Losses, now: str) -> list[str]:
    """The next smaller and the next larger candidate that is worth its bytes."""
    good = unbeaten(group, alone, now)
    place = good.index(now)
    return [*good[max(0, place - 1) : place], *good[place + 1 : place + 2]]


def _best(
    layers: Layers,
    more: Losses,
    chosen: dict[str, str],
    least: float,
    room: int,
    together: Callable[[Sequence[Chosen]], list[float]],
    fits: Callable[[Chosen], bool],
) -> tuple[dict[str, str], float]:
    """The best of the choices that are tried, and what it loses."""
    before, best, most = least, chosen, len(layers.groups)
    while most:
        changes = _changes(layers, more, chosen, room, most)
        if not changes:
            break
        candidate = chosen | changes
        if fits(candidate):
            (loss,) = together([candidate])
            if loss < least:
                best, least = candidate, loss
            if before - loss >= -sum(more[change] for change in changes.items()) / 2:
                break
        most = len(changes) // 2
    return best, least


def _changes(layers: Layers, more: Losses, chosen: Chosen, room: int, most: int) -> dict[str, str]:
    """At most so many changes, of the least sum in the room; none where staying is best."""
    largest = max((abs(loss) for loss in more.values()), default=0.0)
    for part in _LEAST_GAINS:
        options = [
            [
                (chosen[group.name], 0.0),
                *(
                    (scheme, more[group.name, scheme] + part * largest)
                    for scheme in group.nbytes
                    if (group.name, scheme) in more
                ),
            ]
            for group in layers.groups
        ]
        choice = Front(
            [
                [Option(nbytes=group.nbytes[scheme], loss=loss) for scheme, loss in known]
                for group, known in zip(layers.groups, options, strict=True)
            ]
        ).within(room)
        if choice is None:
            return {}
        picks = zip(layers.groups, options, choice.picks, strict=True)
        changes = {group.name: known[pick][0] for group, known, pick in picks if pick}
        if len(changes) <= most:
            return changes
    return {}
