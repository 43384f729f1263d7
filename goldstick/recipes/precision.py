"""Mixed precision from a sensitivity file: which layer gets how many bits, within a budget."""

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
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError

_MEASURE = "measure it with 'goldstick sensitivity MODEL --recipe … -o FILE'"


class Precision(BaseModel):
    """Bits for each layer, chosen by what ``goldstick sensitivity`` measured."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    sensitivity: str = Field(min_length=1, description="the JSON file, relative to the recipe")
    bits_per_weight: float = Field(gt=0, description="stored bits of a weight on average, scales and zeros counted")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A layer of a sensitivity file.

    Attributes:
        name: Its name.
        elements: The number of its weights.
        kl: Bits → what rounding it to them costs, alone.
        stored: Bits → stored bits of a weight, scales and zeros counted.
    """

    name: str
    elements: int
    kl: Mapping[int, float]
    stored: Mapping[int, float]


def choose_widths(layers: Sequence[Measured], budget: float) -> dict[str, int]:
    """Layer name → bits, so that the sum of the layers' KL is small and their mean of stored bits within a budget.

    All begin with the fewest bits. Again and again the step to more bits that saves the most KL for each stored bit is
    taken, of those that still fit; ties go to the layer that comes first. One width for all, where it fits and costs
    less, is preferred. That single layers' costs add up is an assumption: it holds where they are small.

    Args:
        layers: The layers, all measured at the same widths.
        budget: Stored bits of a weight on average.

    Raises:
        RecipeError: The fewest bits of all layers are more than the budget.
    """
    widths = sorted(layers[0].kl)
    total = sum(layer.elements for layer in layers)
    chosen = {layer.name: widths[0] for layer in layers}
    spare = budget * total - sum(layer.elements * layer.stored[widths[0]] for layer in layers)
    if spare < 0:
        least = budget - spare / total
        raise RecipeError(
            f"precision.bits_per_weight: {budget:g} is less than the {least:.4g} stored bits that {widths[0]}-bit "
            "weights take with their scales; raise it, or measure fewer bits."
        )
    steps = [step for place in range(len(layers)) for step in _steps(layers[place], place, widths[0])]
    heapq.heapify(steps)
    while steps:
        _, place, bits, cost, before = heapq.heappop(steps)
        layer = layers[place]
        if chosen[layer.name] == before and cost <= spare:  # what does not fit now will not fit later
            chosen[layer.name] = bits
            spare -= cost
            for step in _steps(layer, place, bits):
                heapq.heappush(steps, step)
    return _uniform_if_better(layers, budget * total, chosen)


def _steps(layer: Measured, place: int, now: int) -> list[tuple[float, int, int, float, int]]:
    """A layer's steps to more bits, best first in the order of tuples: −gain, place, bits, cost, the bits before."""
    found = []
    for bits in sorted(layer.kl):
        if bits > now:
            cost = layer.elements * (layer.stored[bits] - layer.stored[now])
            gain = (layer.kl[now] - layer.kl[bits]) / cost
            if gain > 0:
                found.append((-gain, place, bits, cost, now))
    return found


def _uniform_if_better(layers: Sequence[Measured], bits: float, chosen: dict[str, int]) -> dict[str, int]:
    found, least = chosen, sum(layer.kl[chosen[layer.name]] for layer in layers)
    for width in sorted(layers[0].kl):
        fits = sum(layer.elements * layer.stored[width] for layer in layers) <= bits
        if fits and (cost := sum(layer.kl[width] for layer in layers)) < least:
            found, least = {layer.name: width for layer in layers}, cost
    return found


def with_precision(
    stages: Sequence[Stage], precision: Precision, folder: Path | None
) -> tuple[list[Stage], Mapping[str, Any]]:
    """The stages with an override for every layer that gets another number of bits than its stage says; and the file.

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
    scheme = Scheme.parse(stage.scheme) if isinstance(stage.scheme, str) else stage.scheme
    for key in ("granularity", "group_size", "symmetric"):
        if grid.get(key) != (wanted := getattr(scheme.weight, key)):
            raise RecipeError(
                f"precision: {path} was measured with {key} {grid.get(key)!r} and {stage.name} has {wanted!r}; "
                f"{_MEASURE}."
            )
    overrides: dict[str, Scheme | str] = {
        name: dataclasses.replace(scheme, weight=dataclasses.replace(scheme.weight, bits=bits))
        for name, bits in choose_widths(layers, precision.bits_per_weight).items()
        if bits != scheme.weight.bits
    }
    changed = dataclasses.replace(stage, overrides=overrides)
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
                kl={int(bits): float(value) for bits, value in layer["kl"].items()},
                stored={int(bits): float(value) for bits, value in layer["bits_per_weight"].items()},
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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no name")
    return value


def _require_measured(layer: Measured) -> None:
    """Raise ValueError for numbers that nobody measures."""
    stored = [layer.stored[bits] for bits in sorted(layer.stored)]
    finite = all(map(math.isfinite, (*layer.kl.values(), *stored)))
    if layer.elements < 1 or not stored or not finite or stored[0] <= 0:
        raise ValueError(f"{shown(layer.name)} has numbers that are none")
    if any(least >= more for least, more in itertools.pairwise(stored)):
        raise ValueError(f"more bits of {shown(layer.name)} are not stored in more")
