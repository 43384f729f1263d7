"""Local exchange: one group smaller, another larger, kept where the whole model then loses less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from goldstick.core.progress import Progress
from goldstick.jobs.search.layers import Group, Layers

#: Candidates to each side of the chosen one that are tried.
_NEAR = 2


def exchange(
    layers: Layers,
    losses: Mapping[tuple[str, str], float],
    chosen: Mapping[str, str],
    room: int,
    whole: Callable[[Mapping[str, str]], float],
    tries: int,
    progress: Progress,
) -> dict[str, str]:
    """A choice of no more bytes that loses no more, with all changes together.

    That losses of single changes add up is an assumption. Pairs of changes that fit are tried in the order of what they
    should cost by it, the cheapest first; the first that loses less as a whole is kept, and pairs are made anew.

    Args:
        layers: The groups.
        losses: (group, scheme) → its loss alone.
        chosen: Group → scheme.
        room: Bytes that all groups may take.
        whole: What a choice costs with all changes together.
        tries: How often to ask it.
        progress: Told what is done.
    """
    found = dict(chosen)
    least = whole(found)
    tried: set[tuple[str, ...]] = {tuple(found.values())}
    left = tries
    better = True
    while better and left:
        better = False
        for _, changes in sorted(
            _pairs(layers, losses, found, room), key=lambda pair: (pair[0], sorted(pair[1].items()))
        ):
            candidate = found | changes
            if tuple(candidate.values()) in tried:
                continue
            if not left:
                break
            tried.add(tuple(candidate.values()))
            progress("exchanging", tries - left, tries)
            left -= 1
            if (loss := whole(candidate)) < least:
                found, least, better = candidate, loss, True
                break
    progress("exchanging", tries, tries)
    return found


def _pairs(
    layers: Layers, losses: Mapping[tuple[str, str], float], chosen: Mapping[str, str], room: int
) -> Iterator[tuple[float, dict[str, str]]]:
    """What pairs of changes should cost more, and the changes; of those that fit."""
    spare = room - sum(group.nbytes[chosen[group.name]] for group in layers.groups)
    smaller = [move for group in layers.groups for move in _moves(group, losses, chosen[group.name], -1)]
    larger = [move for group in layers.groups for move in _moves(group, losses, chosen[group.name], 1)]
    for name, scheme, nbytes, loss in larger:
        if nbytes <= spare:
            yield loss, {name: scheme}
        for other, less, freed, cost in smaller:
            if other != name and nbytes + freed <= spare:
                yield loss + cost, {name: scheme, other: less}


def _moves(
    group: Group, losses: Mapping[tuple[str, str], float], now: str, side: int
) -> list[tuple[str, str, int, float]]:
    """Candidates a little larger or smaller: group, scheme, bytes more, loss more."""
    schemes = [s for s in group.nbytes if (group.nbytes[s] - group.nbytes[now]) * side > 0]
    near = schemes[:_NEAR] if side > 0 else schemes[-_NEAR:]
    before = losses[group.name, now]
    return [(group.name, s, group.nbytes[s] - group.nbytes[now], losses[group.name, s] - before) for s in near]
