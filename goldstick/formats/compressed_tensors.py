"""compressed-tensors: the default format, read by transformers, vLLM and SGLang.

Two layouts: ``pack-quantized`` for float activations and ``int-quantized`` for 8-bit ones: an int8 for every code, of 4
bits too, since vLLM runs 4-bit weights with 8-bit activations from this layout only. The config writes the ``format``
into every group, since readers take the layout from there and not from the top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, RecipeError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import input_specs, pack_input
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.name_patterns import module_names, patterns_for


class CompressedTensors:
    """The tensors and config of compressed-tensors, written by goldstick's own packer."""

    name = "compressed-tensors"

    def refuses(self, layer: StoredLayer) -> str | None:
        """Layouts, zeros and mixtures that readers of this format do not load correctly."""
        grid = layer.scheme.weight
        if layer.kind not in ("linear", "experts"):
            return f"compressed-tensors readers quantize linear layers only, not a {layer.kind} weight"
        if not layer.name.endswith(".weight") or len(layer.shape) != 2:
            return "the checkpoint stores these experts in one fused tensor, which its readers cannot quantize"
        if layer.multiplied:
            return (
                "'unfoldable: multiply' gives it a factor for each input, which compressed-tensors has no place for "
                "('unfoldable: skip' does without)"
            )
        if layer.fractional_zeros:
            return "its zeros are integers and this algorithm's are fractions"
        if layer.kind == "experts" and (not grid.symmetric or layer.scheme.activation):
            return "its readers in transformers load experts with symmetric weights and float activations only"
        by_channel = grid.granularity == "channel"
        if layer.scheme.activation and not (grid.symmetric and (grid.bits == 4 or (grid.bits == 8 and by_channel))):
            return (
                "with 8-bit activations its readers run symmetric weights only, of 8 bits by channel, or of 4 bits by "
                "channel or group"
            )
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Mixtures that its readers load with parts left out, and ties."""
        schemes = [layer.scheme for layer in layers]
        if any(scheme.activation for scheme in schemes) and not all(scheme.weight.symmetric for scheme in schemes):
            return "transformers loads asymmetric weights in it only with the 8-bit activations of all layers dropped"
        if ties:
            return f"{next(iter(ties))} runs on a quantized embedding, which compressed-tensors cannot say"
        return None

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """There are none."""
        return []

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        out_features, in_features = layer.shape
        grid = layer.scheme.weight
        groups = grid.groups(in_features)
        scale = (torch.Size([out_features, groups]), scale_dtype)
        if layer.scheme.activation:
            return {"": (layer.shape, torch.int8), "_scale": scale, **input_specs(layer.scheme, scale_dtype)}
        specs = {
            "_packed": (torch.Size([out_features, packed_width(in_features, grid.bits)]), torch.int32),
            "_scale": scale,
            "_shape": (torch.Size([2]), torch.int64),
        }
        if not grid.symmetric:
            specs["_zero_point"] = (torch.Size([packed_width(out_features, grid.bits), groups]), torch.int32)
        return specs

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix; zeros are packed along the output rows.

        Raises:
            FormatError: A zero is not a whole number of the grid, or the input is multiplied.
        """
        if input_multiplier is not None or tensor.input_order is not None:
            raise FormatError("compressed-tensors has no place for what a layer does to its input; use format native.")
        grid = tensor.grid
        inputs = pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)
        if scheme.activation:
            return {"": (tensor.codes.short() - grid.midpoint).to(torch.int8), "_scale": tensor.scale, **inputs}
        parts = {
            "_packed": pack_rows(tensor.codes, grid.bits),
            "_scale": tensor.scale,
            "_shape": torch.tensor(tensor.codes.shape, dtype=torch.int64),
        }
        if tensor.zero is not None:
            zero = tensor.zero.float()
            if not bool(((zero == zero.round()) & (zero >= 0) & (zero <= grid.code_max)).all()):
                raise FormatError("compressed-tensors holds whole zeros only; export to the native format instead.")
            parts["_zero_point"] = pack_rows(zero.T.contiguous().to(torch.uint8), grid.bits).T.contiguous()
        return parts

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors.

        Raises:
            FormatError: The tensors do not belong together.
        """
        grid = scheme.weight
        if "_shape" in parts and parts["_shape"].tolist() != [parts["_packed"].shape[-2], in_features]:
            raise FormatError(
                f"its weight_shape says {parts['_shape'].tolist()} and its codes are those of "
                f"{[parts['_packed'].shape[-2], in_features]}; the checkpoint contradicts itself."
            )
        if "" in parts:
            signed = parts[""].short() + grid.midpoint
            if bool(((signed < 0) | (signed > grid.code_max)).any()):
                raise FormatError(f"its int8 codes are not all of {grid.bits} bits; the checkpoint contradicts itself.")
            codes = signed.to(torch.uint8)
        else:
            codes = unpack_rows(parts["_packed"], grid.bits, in_features)
        zero = None
        if not grid.symmetric:
            rows = codes.shape[-2]
            zero = unpack_rows(parts["_zero_point"].T.contiguous(), grid.bits, rows).T.contiguous().float()
        return QuantizedTensor(codes=codes, scale=parts["_scale"], zero=zero, grid=grid)

    def config(
        self, layers: Sequence[StoredLayer], left_alone: Sequence[str], ties: Mapping[str, str]
    ) -> dict[str, Any]:
        """``quant_method: compressed-tensors``, a group for each scheme."""
        if ties:
            raise FormatError("compressed-tensors cannot tie a quantized head to its embedding; use format native.")
        by_scheme: dict[str, list[StoredLayer]] = {}
        for layer in layers:
            by_scheme.setdefault(layer.scheme.label, []).append(layer)
        modules = {
            label: [name for layer in group for name in module_names(layer.name, _parameter(layer))]
            for label, group in by_scheme.items()
        }
        groups = {}
        for index, (label, group) in enumerate(by_scheme.items()):
            others = [name for other, names in modules.items() if other != label for name in names]
            targets = ["Linear"] if not others else patterns_for(modules[label], others)
            groups[f"group_{index}"] = _group(group[0].scheme, targets)
        layouts = {group["format"] for group in groups.values()}
        config = {
            "quant_method": "compressed-tensors",
            "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": patterns_for(left_alone, [name for names in modules.values() for name in names]),
        }
        if any(not layer.scheme.weight.symmetric for layer in layers):
            # Plain loading of asymmetric weights fails in compressed-tensors 0.20; dequantizing at load works.
            config["dequantize"] = True
        return config


def _parameter(layer: StoredLayer) -> str:
    """The weight of a layer as the model calls it; readers know experts by the checkpoint's names alone."""
    return f"{layer.site}.weight" if layer.kind == "linear" else layer.name


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
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
