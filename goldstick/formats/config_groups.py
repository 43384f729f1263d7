"""Config groups of compressed-tensors: a scheme and the layers that it is for, written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as shown
from typing import Any

from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, RecipeError
from goldstick.formats.name_matching import NamePatterns


def group_of_scheme(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    """The config group of layers that match ``targets``, with their scheme."""
    activation: dict[str, Any] | None = None
    if scheme.activation:
        activation = {
            "num_bits": 8,
            "type": "int",
            "symmetric": scheme.activation.symmetric,
            "strategy": scheme.activation.granularity,
            "dynamic": scheme.activation.dynamic,
        }
        activation |= {"observer": "minmax"} if scheme.static_input else {}
    weights = {
        "num_bits": scheme.weight.bits,
        "type": "int",
        "symmetric": scheme.weight.symmetric,
        "strategy": scheme.weight.granularity,
        "group_size": scheme.weight.group_size,
    }
    return {
        "targets": targets,
        "format": "int-quantized" if scheme.activation else "pack-quantized",
        "weights": weights,
        "input_activations": activation,
        "output_activations": None,
    }


def scheme_of_group(group: Mapping[str, Any]) -> Scheme:
    """The scheme a config group describes.

    Raises:
        FormatError: The group describes something goldstick does not run.
    """
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping) or not (inputs is None or isinstance(inputs, Mapping)):
        raise FormatError(f"goldstick runs integer weights by group or channel, and a group has {shown(weights)}.")
    by_group = weights.get("strategy") == "group"
    if weights.get("type") != "int" or not (by_group or weights.get("strategy") == "channel"):
        raise FormatError(
            f"goldstick runs integer weights by group or channel, and this checkpoint has {shown(dict(weights))}."
        )
    bits, symmetric, size = weights.get("num_bits"), weights.get("symmetric", True), weights.get("group_size")
    if type(bits) is not int or type(symmetric) is not bool or (by_group and type(size) is not int):
        raise FormatError(
            f"A group of the config has num_bits {bits!r}, symmetric {symmetric!r} and group_size {size!r}; they are a "
            "whole number, true or false, and a whole number."
        )
    try:
        grid = Grid(
            bits=bits,
            symmetric=symmetric,
            granularity="group" if by_group else "channel",
            group_size=size if by_group else None,
        )
    except RecipeError as error:
        raise FormatError(f"A group of the config makes no sense: {error}") from error
    return Scheme(weight=grid, activation=_activation(inputs) if inputs else None)


def _activation(inputs: Mapping[str, Any]) -> Grid:
    strategy, symmetric, dynamic = inputs.get("strategy"), inputs.get("symmetric", True), inputs.get("dynamic", False)
    integers = inputs.get("num_bits") == 8 and inputs.get("type", "int") == "int"
    if integers and strategy == "token" and dynamic is True and symmetric:
        return Grid(bits=8, granularity="token")
    if integers and strategy == "tensor" and dynamic is False:
        return Grid(bits=8, symmetric=symmetric, granularity="tensor")
    raise FormatError(
        "goldstick runs 8-bit integer activations, dynamic and symmetric per token or static per tensor, and this "
        f"checkpoint has {shown(dict(inputs))}."
    )


def config_groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of a ``quantization_config``, each with a list of ``targets``.

    Raises:
        FormatError: There are none, or one is no table.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        raise FormatError("The config has no table 'config_groups', so that nothing says how its layers are quantized.")
    for name, group in groups.items():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise FormatError(f"The group {name[:100]!r} of the config has no list of names 'targets'.")
    return list(groups.values())


def groups_by_module(config: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any] | None]:
    """A function from a module's checkpoint name to its group of a ``quantization_config``; ``None`` for none.

    The first target that matches decides. What names a class, as "Linear" does, matches every layer that no other does.

    Raises:
        FormatError: There are no groups, one is no table, or a target is a pattern that is not matched.
    """
    listed = [(target, group) for group in config_groups(config) for target in group["targets"]]
    patterns = NamePatterns([target for target, _ in listed])
    of_class = next((group for target, group in listed if not target.startswith("re:") and "." not in target), None)

    def group_of(module: str) -> Mapping[str, Any] | None:
        place = patterns.first(module)
        return of_class if place is None else listed[place][1]

    return group_of
