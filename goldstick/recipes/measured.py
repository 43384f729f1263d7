"""Measured: a recipe whose bits were chosen by a sensitivity file fits the very network that was measured, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goldstick.algorithms.base import rounds
from goldstick.errors import RecipeError
from goldstick.recipes.idle import refuse_idle
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.structure.network import Network

_REMEDY = "Measure this model with this recipe's targets: 'goldstick sensitivity MODEL --recipe … -o FILE'."


def resolve_recipe(recipe: Recipe, network: Network) -> Resolution:
    """What a recipe means for a network, as :func:`resolve`, provided that it rounds something.

    Where its bits were chosen by a sensitivity file, the budget was counted over the very layers that it rounds.

    Raises:
        RecipeError: The sensitivity file lacks a targeted layer, holds one that is not targeted, or one of another
            shape; or the recipe is illegal for the network, or leaves it nothing to round.
        StructureError: More than a fifth of the model's matrices are of a kind goldstick does not recognise.
    """
    measured: Mapping[str, Sequence[int]] = {
        layer["name"]: layer["shape"] for layer in recipe.sensitivity.get("layers", ())
    }
    if not measured:
        return _resolve(recipe, network)
    of_model = repr(str(recipe.sensitivity.get("model", "a model without a name")))
    _refuse_another_network(measured, of_model, network)
    targeted = {site.name for stage in recipe.stages if rounds(stage) for site in stage.targets.select(network)}
    if others := [name for name in measured if name not in targeted]:
        raise RecipeError(
            f"precision: the budget was counted over {_some(others)} of the sensitivity file, measured on {of_model}, "
            f"which this recipe does not round. {_REMEDY}"
        )
    resolution = _resolve(recipe, network)
    if missing := [name for name in resolution.assignments if name not in measured]:
        raise RecipeError(
            f"precision: the sensitivity file, measured on {of_model}, lacks {_some(missing)}, which this recipe "
            f"rounds; the budget would be missed. {_REMEDY}"
        )
    return resolution


def _resolve(recipe: Recipe, network: Network) -> Resolution:
    resolution = resolve(recipe.stages, network)
    refuse_idle(network, resolution)
    return resolution


def _refuse_another_network(measured: Mapping[str, Sequence[int]], of_model: str, network: Network) -> None:
    for name, shape in measured.items():
        site = network.by_name.get(name)
        if site is None or tuple(site.matrix_shape) != tuple(shape):
            here = "is missing" if site is None else f"is {_shape(site.matrix_shape)}"
            raise RecipeError(
                f"precision: the sensitivity file was measured on another model, {of_model}: {name} is "
                f"{_shape(shape)} there and {here} here. {_REMEDY}"
            )


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
