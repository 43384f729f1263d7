"""Which channels go, given their scores and how much is to be saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from goldstick.errors import RecipeError

Scope = Literal["layer", "global"]
#: Name of a group → the units that go.
Choice = dict[str, list[int]]


def knockoff_scores(strength: Tensor, beta: Tensor) -> Tensor:
    """|γ|·(β − (1 − β)) (arXiv 2010.10732, equation 9): how much more real channels are wanted than their knockoffs.

    Args:
        strength: γ, [units].
        beta: β, [units].
    """
    return strength.abs() * (2 * beta - 1)


def lowest(scores: Mapping[str, Tensor], rate: float, scope: Scope, steps: Mapping[str, int] | None = None) -> Choice:
    """A share of the units, those of the lowest scores; every group keeps one at least.

    Args:
        scores: Name of a group → scores [units].
        rate: The share, from 0 to below 1. Of each group the whole part of rate · units.
        scope: Whether the share is taken of each ``layer``, or of all units together (``global``), whose scores must
            then be comparable.
        steps: Name of a group → what a group keeps is a multiple of this, or all of it; 1 where there is none. Units
            that would go stay for that.
    """
    chosen = _lowest(scores, rate, scope)
    counts = {
        name: _in_steps(len(values), len(chosen[name]), (steps or {}).get(name, 1)) for name, values in scores.items()
    }
    return {name: units[: counts[name]] for name, units in chosen.items()}


def _lowest(scores: Mapping[str, Tensor], rate: float, scope: Scope) -> Choice:
    """The same in steps of one, units of the lowest scores first."""
    if scope == "layer":
        counts = {name: min(_whole(rate * len(values)), len(values) - 1) for name, values in scores.items()}
        return {name: _order(values)[: counts[name]] for name, values in scores.items()}
    flat = torch.cat(list(scores.values()))
    owners = [(name, unit) for name, values in scores.items() for unit in range(len(values))]
    chosen: Choice = {name: [] for name in scores}
    left = _whole(rate * len(owners))
    for index in _order(flat):
        name, unit = owners[index]
        if left and len(chosen[name]) < len(scores[name]) - 1:
            chosen[name].append(unit)
            left -= 1
    return chosen


def _whole(count: float) -> int:
    """The whole part of a product, of which rounding may have taken the last bits: 0.29 · 100 is 29."""
    return int(count + 1e-6)


def _in_steps(units: int, gone: int, step: int) -> int:
    """How many of ``gone`` units still go where those left are to be a multiple of ``step``."""
    return max(0, units - math.ceil((units - gone) / step) * step)


def to_share(
    scores: Mapping[str, Tensor],
    share: float,
    scope: Scope,
    left_of: Callable[[Choice], float],
    steps: Mapping[str, int] | None = None,
) -> Choice:
    """The fewest units, lowest scores first, after which no more than a share is left.

    Args:
        scores: Name of a group → scores [units].
        share: What may be left, from 0 to 1.
        scope: As for :func:`lowest`.
        left_of: Units that go → the share that is left; falling.
        steps: As for :func:`lowest`.

    Returns:
        The choice; where even the largest leaves more, that one.
    """
    total = sum(len(values) for values in scores.values())
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if left_of(lowest(scores, middle / total, scope, steps)) <= share:
            high = middle
        else:
            low = middle + 1
    return lowest(scores, low / total, scope, steps)


def fewest(scores: Mapping[str, Tensor], keep: Mapping[str, int]) -> Choice:
    """The units of the lowest scores, so that given numbers are left; of groups that are not named none goes.

    Args:
        scores: Name of a group → scores [units].
        keep: Name of a group → how many units it keeps.

    Raises:
        RecipeError: There is no such group, or it has fewer.
    """
    for name, number in keep.items():
        if name not in scores:
            raise RecipeError(
                f"scop is to keep {number} channels of {name}, and no channels of that name can be cut. Those that "
                f"can: {', '.join(scores) or 'none'}."
            )
        if number > len(scores[name]):
            raise RecipeError(f"scop is to keep {number} channels of {name}, which has {len(scores[name])}.")
    return {name: _order(values)[: len(values) - keep.get(name, len(values))] for name, values in scores.items()}


def _order(values: Tensor) -> list[int]:
    """Indices from the lowest value to the highest; of equal ones the first comes first."""
    order: list[int] = torch.sort(values.double().cpu(), stable=True).indices.tolist()
    return order
