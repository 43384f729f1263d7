"""Mixed precision from a sensitivity file: which layer gets how many bits, or which scheme, within a budget."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from goldstick.algorithms.base import rounds
from goldstick.algorithms.stage import Stage
from goldstick.core.mixture import MIXTURES
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.targets import exactly

#: So many bits, or a scheme by name.
Choice = int | str
_MEASURE = "measure it with 'goldstick sensitivity MODEL --recipe … -o FILE'"


class Precision(BaseModel):
    """Bits or a scheme for each layer, chosen by what ``goldstick sensitivity`` measured."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    sensitivity: str = Field(min_length=1, description="the JSON file, relative to the recipe")
    bits_per_weight: float = Field(gt=0, description="stored bits of a weight on average, scales and zeros counted")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A layer of a sensitivity file.

    Attributes:
        name: Its name.
        elements: The number of its weights.
        kl: Bits, or the name of a scheme → what rounding it to them costs, alone.
        stored: The same → stored bits of a weight, scales and zeros counted.
    """

    name: str
    elements: int
    kl: Mapping[Choice, float]
    stored: Mapping[Choice, float]

    def in_order(self) -> list[Choice]:
        """What it was measured at, the fewest stored bits first; of as many the least loss."""
        return sorted(self.kl, key=lambda choice: (self.stored[choice], self.kl[choice]))


def choose_widths(layers: Sequence[Measured], budget: float) -> dict[str, Choice]:
    """Layer name → bits or scheme, so that the sum of the layers' KL is small and their stored bits within a budget.

    All begin with the fewest bits. Again and again the step to more bits that saves the most KL for each stored bit is
    taken, of those that still fit; ties go to the layer that comes first. One width for all, where it fits and costs
    less, is preferred. That single layers' costs add up is an assumption: it holds where they are small.

    Args:
        layers: The layers, all measured at the same widths.
        budget: Stored bits of a weight on average.

    Raises:
        RecipeError: The fewest bits of all layers are more than the budget.
    """
    total = sum(layer.elements for layer in layers)
    chosen = {layer.name: layer.in_order()[0] for layer in layers}
    spare = budget * total - sum(layer.elements * layer.stored[chosen[layer.name]] for layer in layers)
    if spare < 0:
        least, fewest = budget - spare / total, chosen[layers[0].name]
        what = f"{fewest}-bit weights take with their scales" if isinstance(fewest, int) else "the smallest take"
        raise RecipeError(
            f"precision.bits_per_weight: {budget:g} is less than the {least:.4g} stored bits that {what}; raise it, or "
            "measure fewer bits."
        )
    steps = [step for place, layer in enumerate(layers) for step in _steps(layer, place, chosen[layer.name])]
    heapq.heapify(steps)
    while steps:
        _, place, _, choice, cost, before = heapq.heappop(steps)
        layer = layers[place]
        if chosen[layer.name] == before and cost <= spare:  # what does not fit now will not fit later
            chosen[layer.name] = choice
            spare -= cost
            for step in _steps(layer, place, choice):
                heapq.heappush(steps, step)
    return _uniform_if_better(layers, budget * total, chosen)


def _steps(layer: Measured, place: int, now: Choice) -> list[tuple[float, int, int, Choice, float, Choice]]:
    """A layer's steps to more stored bits, best first in the order of tuples: −gain, place, rank of what it steps to.

    Then come what it steps to, its cost in bits, and what was before.
    """
    found = []
    for rank, choice in enumerate(layer.in_order()):
        cost = layer.elements * (layer.stored[choice] - layer.stored[now])
        if cost > 0 and (gain := (layer.kl[now] - layer.kl[choice]) / cost) > 0:
            found.append((-gain, place, rank, choice, cost, now))
    return found


def _uniform_if_better(layers: Sequence[Measured], bits: float, chosen: dict[str, Choice]) -> dict[str, Choice]:
    found, least = chosen, sum(layer.kl[chosen[layer.name]] for layer in layers)
    for choice in layers[0].in_order():
        fits = sum(layer.elements * layer.stored[choice] for layer in layers) <= bits
        if fits and (cost := sum(layer.kl[choice] for layer in layers)) < least:
            found, least = {layer.name: choice for layer in layers}, cost
    return found


def with_precision(
    stages: Sequence[Stage], precision: Precision, folder: Path | None
) -> tuple[list[Stage], Mapping[str, Any]]:
    """The stages with an override for every layer that gets other than its stage says; and the file.

    Args:
        stages: The recipe's; exactly one of them rounds.
        precision: The file and the budget.
        folder: What the file's path is relative to; the working directory where ``None``.

    Raises:
        RecipeError: The file cannot be read or was measured on another grid, or the stages leave open what is meant.
    """
    path = (folder or Path()) / precision.sensitivity
    data, layers = _read(path)
    grid = data["grid"]
    rounding = [index for index, stage in enumerate(stages) if rounds(stage)]
    if len(rounding) != 1:
        raise RecipeError(f"precision: a recipe with it has exactly one stage that rounds, not {len(rounding)}.")
    stage = stages[rounding[0]]
    assert rounds(stage)
    if stage.overrides:
        raise RecipeError(
            f"precision: it chooses the overrides of {stage.name}; leave 'overrides' out, or 'precision'."
        )
    if stage.scheme in MIXTURES:
        raise RecipeError(f"precision: {stage.scheme} chooses types by rules of its own; give a scheme such as q4_k.")
    scheme = Scheme.parse(stage.scheme) if isinstance(stage.scheme, str) else stage.scheme
    of_bits = any(isinstance(choice, int) for choice in layers[0].kl)
    for key in ("granularity", "group_size", "symmetric") if of_bits else ():
        if grid.get(key) != (wanted := getattr(scheme.weight, key)):
            raise RecipeError(
                f"precision: {path} was measured with {key} {grid.get(key)!r} and {stage.name} has {wanted!r}; "
                f"{_MEASURE}."
            )
    chosen: dict[str, Scheme | str] = {
        name: scheme
        if choice in (scheme.weight.bits if of_bits else None, scheme.label)
        else choice
        if isinstance(choice, str)
        else dataclasses.replace(scheme, weight=dataclasses.replace(scheme.weight, bits=choice))
        for name, choice in choose_widths(layers, precision.bits_per_weight).items()
    }
    changed = dataclasses.replace(stage, overrides=exactly(chosen, scheme))
    return [changed if index == rounding[0] else stage for index, stage in enumerate(stages)], data


def _read(path: Path) -> tuple[Mapping[str, Any], list[Measured]]:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"precision.sensitivity: {path} cannot be read ({error}); {_MEASURE}.") from error
    try:
        layers = [
            Measured(
                name=_text(layer["name"]),
                elements=int(layer["elements"]),
                kl={_choice(key): float(value) for key, value in layer["kl"].items()},
                stored={_choice(key): float(value) for key, value in layer["bits_per_weight"].items()},
            )
            for layer in data["layers"]
        ]
        if not layers or any({*layer.kl} != {*layers[0].kl} or {*layer.kl} != {*layer.stored} for layer in layers):
            raise ValueError("its layers were not measured at the same widths")
        for layer in layers:
            _require_measured(layer)
        if len({layer.name for layer in layers}) < len(layers):
            raise ValueError("it has a layer twice")
        if not isinstance(data["grid"], Mapping):
            raise TypeError("its grid is no mapping")
        for layer in data["layers"]:
            if math.prod(map(int, layer["shape"])) != layer["elements"]:
                raise ValueError(f"{layer['name']} has another number of elements than its shape")
        return data, layers
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        cause = str(error)[:200]
        raise RecipeError(f"precision.sensitivity: {path} is no sensitivity file ({cause}); {_MEASURE}.") from error


def _choice(text: str) -> Choice:
    """Bits or a scheme; ValueError for what is neither."""
    if text.isdecimal():
        return int(text)
    try:
        Scheme.parse(text)
    except RecipeError as error:
        raise ValueError(f"{shown(text)} is no number of bits and no scheme") from error
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no name")
    return value


def _require_measured(layer: Measured) -> None:
    """Raise ValueError for numbers that nobody measures."""
    every = list(layer.stored.values())
    stored = [layer.stored[bits] for bits in sorted(choice for choice in layer.stored if isinstance(choice, int))]
    finite = all(map(math.isfinite, (*layer.kl.values(), *every)))
    if layer.elements < 1 or not every or not finite or min(every) <= 0:
        raise ValueError(f"{shown(layer.name)} has numbers that are none")
    if any(least >= more for least, more in itertools.pairwise(stored)):
        raise ValueError(f"more bits of {shown(layer.name)} are not stored in more")
