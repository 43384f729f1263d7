"""Config groups of compressed-tensors: a scheme and the layers that it is for, written and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from reprlib import repr as shown
from types import NoneType
from typing import Any, cast

from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO, Granularity, Grid
from goldstick.core.scheme import FLOAT_INPUTS, Scheme
from goldstick.errors import FormatError, RecipeError
from goldstick.formats.compressed_layouts import layout_of, scale_dtype_name
from goldstick.formats.name_matching import NamePatterns


def group_of_scheme(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    """The config group of layers that match ``targets``, with their scheme."""
    layout = layout_of(scheme)
    return {
        "targets": targets,
        "format": layout.name if layout else None,
        "weights": _weights(scheme.weight),
        "input_activations": _inputs(scheme.activation) if scheme.activation else None,
        "output_activations": None,
    }


def _weights(grid: Grid) -> dict[str, Any]:
    block = grid.granularity == "block"
    args: dict[str, Any] = {
        "num_bits": grid.bits,
        "type": "int" if grid.integers else "float",
        "symmetric": grid.symmetric,
        "strategy": "tensor_group" if grid.tensor_scaled else grid.granularity,
        "group_size": None if block else grid.group_size,
    }
    args |= {"block_structure": [grid.group_size, grid.group_size]} if block else {}
    return args | ({"scale_dtype": scale_dtype_name(grid)} if grid.scale else {})


def _inputs(grid: Grid) -> dict[str, Any]:
    args: dict[str, Any] = {
        "num_bits": grid.bits,
        "type": "int" if grid.integers else "float",
        "symmetric": grid.symmetric,
        "strategy": "tensor_group" if grid.tensor_scaled else grid.granularity,
        "dynamic": "local" if grid.tensor_scaled else grid.dynamic,
    }
    args |= {"group_size": grid.group_size} if grid.group_size else {}
    args |= {"scale_dtype": scale_dtype_name(grid)} if grid.scale else {}
    observer = "static_minmax" if grid.tensor_scaled else None if grid.dynamic else "minmax"
    return args | ({"observer": observer} if observer else {})


def scheme_of_group(group: Mapping[str, Any]) -> Scheme:
    """The scheme a config group describes.

    Raises:
        FormatError: The group describes something goldstick does not run.
    """
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping) or not (inputs is None or isinstance(inputs, Mapping)):
        raise FormatError(f"goldstick runs integer or float weights, and a group has {shown(weights)}.")
    if outputs := group.get("output_activations"):
        raise FormatError(
            f"goldstick rounds no outputs of layers, and a group has output_activations: {shown(outputs)}."
        )
    activation = None if inputs is None else _activation(_completed(inputs))
    weights = _completed(weights)
    grid = _float_grid(weights) if weights["type"] == "float" else _integer_grid(weights)
    try:
        return Scheme(weight=grid, activation=activation)
    except RecipeError as error:
        raise FormatError(f"A group of the config makes no sense: {error}") from error


def _completed(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of weights or of inputs with the library's own for those that a config leaves out."""
    told = {name: value.lower() if name in ("type", "strategy") and isinstance(value, str) else value
            for name, value in args.items()}  # fmt: skip
    size = told.get("group_size")
    if told.get("strategy") is None:
        by_group = type(size) is int and size > 0
        told["strategy"] = "tensor" if size is None else "group" if by_group else "channel"
    return {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **told}


def _integer_grid(weights: Mapping[str, Any]) -> Grid:
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
        return Grid(
            bits=bits,
            symmetric=symmetric,
            granularity="group" if by_group else "channel",
            group_size=size if by_group else None,
        )
    except RecipeError as error:
        raise FormatError(f"A group of the config makes no sense: {error}") from error


#: num_bits of float grids → element.
_FLOATS = {8: "e4m3", 6: "e2m3", 4: "e2m1"}
_SCALES_OF_OLD = {(4, 32): "torch.uint8", (4, 16): "torch.float8_e4m3fn", (8, 32): "torch.uint8"}
_SCALES = {None: None, "torch.uint8": POWERS_OF_TWO, "torch.float8_e4m3fn": FLOAT8_SCALES}


def _float_grid(args: Mapping[str, Any]) -> Grid:
    """The float grid of the arguments of weights or of inputs."""
    strategy, block, symmetric = args.get("strategy"), args.get("block_structure"), args.get("symmetric", True)
    size = args.get("group_size")
    if strategy == "block" and isinstance(block, list) and len(block) == 2 and block[0] == block[1]:
        size = block[0]
    scale = args.get("scale_dtype")
    bits = args.get("num_bits")
    known = strategy in ("tensor", "channel", "group", "tensor_group", "block", "token") and symmetric is True
    if not known or type(bits) is not int or bits not in _FLOATS or not isinstance(scale, (str, NoneType)):
        raise FormatError(f"goldstick does not run the float grid {shown(dict(args))}.")
    if scale is None:  # which earlier versions did not write
        scale = _SCALES_OF_OLD.get((bits, size if type(size) is int else 0))
    sized = strategy in ("group", "tensor_group", "block")
    try:
        return Grid(
            element=_FLOATS[bits],
            bits=bits,
            granularity=cast(Granularity, "group" if strategy == "tensor_group" else strategy),
            group_size=size if sized and type(size) is int else None,
            scale=_SCALES[scale],
        )
    except (RecipeError, KeyError) as error:
        raise FormatError(f"A group of the config makes no sense: {error}") from error


def _activation(inputs: Mapping[str, Any]) -> Grid:
    strategy, symmetric, dynamic = inputs.get("strategy"), inputs.get("symmetric", True), inputs.get("dynamic", False)
    if inputs.get("type") == "float":
        grid = _float_grid(inputs)
        if grid in FLOAT_INPUTS.values() and dynamic == ("local" if grid.tensor_scaled else grid.dynamic):
            return grid
        raise FormatError(f"goldstick does not run the float activations {shown(dict(inputs))}.")
    bits, integers = inputs.get("num_bits"), inputs.get("type", "int") == "int"
    if integers and bits in (8, 4) and strategy == "token" and dynamic is True and symmetric:
        return Grid(bits=int(bits), granularity="token")
    if integers and bits == 8 and strategy == "tensor" and dynamic is False:
        return Grid(bits=8, symmetric=symmetric, granularity="tensor")
    raise FormatError(
        "goldstick runs integer activations of 8 or 4 bits, dynamic and symmetric per token, or of 8 bits, static per "
        f"tensor, and this checkpoint has {shown(dict(inputs))}."
    )


#: Names of classes as Python writes them; names of modules are in small letters.
_LINEAR_CLASS = re.compile(r"(?=_*[A-Z])\w*Linear\w*", re.ASCII)


def config_groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of a ``quantization_config``, each with a list of ``targets``.

    Raises:
        FormatError: There are none, or one is no table.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        raise FormatError(
            "The config has no table 'config_groups', so nothing says how layers are quantized; fetch the file again."
        )
    for name, group in groups.items():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise FormatError(f"The group {name[:100]!r} of the config has no list of names 'targets'.")
    return list(groups.values())


def groups_by_module(config: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any] | None]:
    """A function from a module's checkpoint name to its group of a ``quantization_config``; ``None`` for none.

    A full name goes before patterns, and of several patterns that match the first in alphabetical order, as the
    library has it. What names a class of linear layers, as "Linear" does, matches every layer that no other target
    does: no other layers are quantized in this format. Other targets without a dot are modules' names.

    Raises:
        FormatError: There are no groups, one is no table, or a target is a pattern that is not matched.
    """
    meant = {target: group for group in config_groups(config) for target in group["targets"]}
    listed = sorted(meant.items(), key=lambda one: ("re:" in one[0], one[0]))
    patterns = NamePatterns([target for target, _ in listed])
    of_class = next((group for target, group in listed if _LINEAR_CLASS.fullmatch(target)), None)

    def group_of(module: str) -> Mapping[str, Any] | None:
        place = patterns.first(module)
        return of_class if place is None else listed[place][1]

    return group_of
