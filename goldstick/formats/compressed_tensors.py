"""compressed-tensors: the default format, read by transformers, vLLM and SGLang.

How a weight lies in tensors stands in :mod:`goldstick.formats.compressed_layouts`: integers as ``pack-quantized``, or
for 8-bit integer activations ``int-quantized``; FP8, MXFP8, MXFP4 and NVFP4 each in a layout of their own. The config
writes the ``format`` into every group, since readers take the layout from there and not from the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import RotationOf, SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.compressed_layouts import (
    INT_QUANTIZED,
    NAIVE_QUANTIZED,
    PACK_QUANTIZED,
    CodeLayout,
    divides_into_bytes,
    layout_of,
)
from goldstick.formats.config_groups import group_of_scheme, groups_by_module, scheme_of_group
from goldstick.formats.input_scale import input_specs, pack_input
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.name_patterns import excepted_names, module_names, patterns_for
from goldstick.formats.site_table import SiteTable
from goldstick.formats.transform_config import TRANSFORM_CONFIG, InputTransforms, transform_config

#: Said of checkpoints whose layers turn their input at run time.
TURNED = (
    "Layers turn their input at run time, which transformers 5.23 by itself leaves out: its outputs are wrong until "
    "compressed_tensors.transform.apply_transform_config is called on the loaded model"
)

#: How a head's weight is called, which servers find by name alone: it is no linear layer of theirs.
_HEAD = "lm_head.weight"


class CompressedTensors(StorageFormat):
    """The tensors and config of compressed-tensors, written by goldstick's own packer."""

    name = "compressed-tensors"
    method = "compressed-tensors"
    expert_suffixes = ("_packed", "_scale", "_zero_point", "_shape", "_global_scale")
    packages = ("compressed_tensors",)
    loading = "Load it with transformers and compressed-tensors, with vLLM, or with `goldstick.load(directory)`."
    holds_rotations = True
    holds_kv_scales = True
    empties_layers = True

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
        if layer.fractional_zeros and not grid.symmetric:
            return "its zeros are integers and this algorithm's are fractions"
        if layer.kind == "experts" and (not grid.symmetric or layer.scheme.activation):
            return "its readers in transformers load experts with symmetric weights and float activations only"
        layout = layout_of(layer.scheme)
        if layout is None:
            return f"compressed-tensors has no layout for the grid {grid.label}"
        if not divides_into_bytes(grid, layer.shape[-1]):
            return f"its {layer.shape[-1]} inputs do not divide into the groups and words of {grid.label}"
        by_channel = grid.granularity == "channel"
        readable = grid.symmetric and (grid.bits == 4 or (grid.bits == 8 and by_channel))
        if layout is INT_QUANTIZED and not readable:
            return (
                "with 8-bit activations its readers run symmetric weights only, of 8 bits by channel, or of 4 bits by "
                "channel or group"
            )
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Mixtures that its readers load with parts left out, and ties."""
        schemes = [layer.scheme for layer in layers]
        if any(scheme.activation for scheme in schemes) and not all(scheme.weight.symmetric for scheme in schemes):
            return "transformers loads asymmetric weights in it only with the rounding of all inputs dropped"
        if ties:
            return (
                f"{next(iter(ties))} runs on the quantized weight of another layer, which compressed-tensors cannot say"
            )
        return None

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """That transformers does not let compressed-tensors turn inputs."""
        return [f"{TURNED}."] if any(layer.rotated for layer in layers) else []

    def loading_of(self, layers: Sequence[StoredLayer]) -> str:
        """How to load it; what layers do to their input needs more than transformers."""
        if any(layer.rotated for layer in layers):
            return f"Load it with vLLM on an NVIDIA GPU, or with `goldstick.load(directory)`. {TURNED}."
        return self.loading

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        layout = _layout(layer.scheme)
        specs = layout.specs(layer.shape, layer.scheme.weight, scale_dtype)
        return specs | input_specs(layer.scheme, scale_dtype)

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
        if tensor.zero is not None and not tensor.grid.are_codes(tensor.zero.float()):
            raise FormatError("compressed-tensors holds whole zeros only; export to the native format instead.")
        return _layout(scheme).pack(tensor) | pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors.

        Raises:
            FormatError: The tensors do not belong together.
        """
        return _layout(scheme).unpack(parts, scheme.weight, in_features)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: compressed-tensors``, a group for each scheme."""
        if ties:
            raise FormatError("compressed-tensors cannot tie a quantized head to its embedding; use format native.")
        by_scheme: dict[str, list[StoredLayer]] = {}
        for layer in layers:
            by_scheme.setdefault(layer.scheme.label, []).append(layer)
        modules = {label: [name for layer in group for name in _names(layer)] for label, group in by_scheme.items()}
        groups = {}
        for index, (label, group) in enumerate(by_scheme.items()):
            others = [name for other, names in modules.items() if other != label for name in names]
            heads = [layer.name.removesuffix(".weight") for layer in group if layer.name.endswith(_HEAD)]
            targets = ["Linear", *heads] if not others else patterns_for(modules[label], others)
            groups[f"group_{index}"] = group_of_scheme(group[0].scheme, targets)
        layouts = {group["format"] for group in groups.values()}
        config = {
            "quant_method": self.method,
            "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": patterns_for(ignored, [name for names in modules.values() for name in names]),
        }
        if any(not layer.scheme.weight.symmetric for layer in layers):
            # Plain loading of asymmetric weights fails in compressed-tensors 0.20; dequantizing at load works.
            config["dequantize"] = True
        turned = {name: layer.rotated for layer in layers for name in _names(layer) if layer.rotated}
        if turned:
            quantized = {name for names in modules.values() for name in names}
            config[TRANSFORM_CONFIG] = transform_config(turned, [*ignored, *sorted(quantized - set(turned))])
        return config

    def rotations(self, config: Mapping[str, Any]) -> RotationOf:
        """What its ``transform_config`` says."""
        transforms = InputTransforms(config)
        return lambda name, site, in_features: transforms.size(name.removesuffix(".weight"), in_features)

    def idle_rotations(self, config: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
        """Groups of its ``transform_config`` that mean no layer."""
        return InputTransforms(config).idle(modules)

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: the config matches layers by patterns."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the group says that a layer belongs to."""
        group_of = groups_by_module(config)

        def scheme_of(codes: str, site: str) -> Scheme | None:
            group = group_of(codes.removesuffix(self.codes_suffix).removesuffix(".weight"))
            if group is None:
                return None
            scheme = scheme_of_group(group)
            _refuse_other_layout(scheme, group.get("format") or config.get("format"))
            return scheme

        return scheme_of

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """Modules that ``ignore`` takes out, and those that are stored in float and belong to no group."""
        names = excepted_names(config, "ignore")
        ignored, group_of = NamePatterns(names), groups_by_module(config)

        def stays_float(module: str, in_block: bool | None) -> bool:
            taken_out = "Linear" in names or ignored.first(module) is not None
            return taken_out or (in_block is not None and group_of(module) is None)

        return stays_float

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """Packed codes, or those of 8 bits, which are stored under the weight's own name."""
        plain = dtype in (torch.int8, torch.float8_e4m3fn) and not name.endswith(("_zero_point", "_scale"))
        return super().weight_name(name, dtype) or (name if plain else None)


COMPRESSED_TENSORS = CompressedTensors()


def _layout(scheme: Scheme) -> CodeLayout:
    found = layout_of(scheme)
    if found is None:
        raise FormatError(f"compressed-tensors has no layout for the grid {scheme.weight.label}.")
    return found


#: Layouts of integers as configs call them → as they are called here.
_INTEGER_LAYOUTS = {name: name for name in (PACK_QUANTIZED.name, INT_QUANTIZED.name)} | {
    NAIVE_QUANTIZED.name: INT_QUANTIZED.name
}


def _refuse_other_layout(scheme: Scheme, declared: object) -> None:
    """Refuse integers that a config declares to lie in another layout than the one that is read for their scheme."""
    layout = _layout(scheme)
    stored = _INTEGER_LAYOUTS.get(declared) if isinstance(declared, str) else None
    if scheme.weight.integers and stored not in (None, layout.name):
        raise FormatError(
            f"Its layers of {scheme.label} are stored as {declared!r}, which goldstick reads as {layout.name!r} only. "
            "Store them so with the tool that made them, or quantize the float model."
        )


def _names(layer: StoredLayer) -> list[str]:
    return module_names(layer.name, _parameter(layer))


def _parameter(layer: StoredLayer) -> str:
    """The weight of a layer as the model calls it; readers know experts by the checkpoint's names alone."""
    return f"{layer.site}.weight" if layer.kind == "linear" else layer.name
