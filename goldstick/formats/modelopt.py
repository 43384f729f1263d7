"""NVFP4 and FP8 as NVIDIA's Model Optimizer stores them: ``quant_method: modelopt``.

``X`` uint8 [out, in/2], two FP4 codes to a byte, or float8_e4m3fn [out, in]; ``X_scale``, of NVFP4 float8_e4m3fn
[out, in/16] beside a float32 ``X_scale_2`` [] that multiplies it, of FP8 a float32 [] or one for each row; and
``input_scale`` float32 [] where inputs are quantized by tensor. What multiplies is the inverse of goldstick's global
scale, rounded in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.compressed_layouts import FLOAT_QUANTIZED, CodeLayout, divides_into_bytes, layout_of
from goldstick.formats.input_scale import INPUT_GLOBAL_SCALE, INPUT_SCALE, pack_input, part_name, unpack_input
from goldstick.formats.site_table import SiteTable

_SCALE_2 = "_scale_2"
#: Where it says how it quantized, in older versions only there.
BESIDE_CONFIG = "hf_quant_config.json"
#: Schemes by what Model Optimizer calls them, each with its weights alone.
_ALGORITHMS = {
    "NVFP4": ("nvfp4", "nvfp4a16"),
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8-dynamic",),
}
_WRITTEN = ("nvfp4a16", "fp8", "fp8-dynamic")
_FP8_CACHE = {"dynamic": False, "num_bits": 8, "type": "float"}
_SCALAR = (torch.Size([]), torch.float32)


class ModelOptimizer(StorageFormat):
    """The tensors and config of Model Optimizer's checkpoints for Hugging Face."""

    name = "modelopt"
    method = "modelopt"
    codes_suffix = ""
    scale_suffix = "_scale"
    loading = "Load it with vLLM, SGLang or TensorRT-LLM, or with `goldstick.load(directory)`."

    def refuses(self, layer: StoredLayer) -> str | None:
        """All but NVFP4, and FP8 by tensor or channel."""
        grid = layer.scheme.weight
        if layer.kind not in ("linear", "experts") or not layer.name.endswith(".weight") or len(layer.shape) != 2:
            return f"the modelopt format holds linear layers, not what is stored as {layer.name}"
        if layer.scheme.label not in _WRITTEN:
            return (
                f"goldstick writes {', '.join(_WRITTEN)} as modelopt, since scales of NVFP4 inputs are stored there as "
                "their inverse, which does not always give them back"
            )
        if not divides_into_bytes(grid, layer.shape[-1]):
            return f"rows of {layer.shape[-1]} inputs do not divide into the groups and words of {grid.label}"
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Mixtures: its config names one algorithm."""
        if ties:
            return f"{next(iter(ties))} runs on a quantized embedding, which the modelopt format cannot say"
        several = len({layer.scheme.weight for layer in layers}) > 1
        return "its config names one algorithm for all layers, and these have several" if several else None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        grid, (rows, columns) = layer.scheme.weight, layer.shape
        specs: dict[str, tuple[torch.Size, torch.dtype]]
        if grid.tensor_scaled:
            scales = torch.Size([rows, grid.groups(columns)])
            codes = torch.Size([rows, columns * grid.bits // 8])
            specs = {"": (codes, torch.uint8), "_scale": (scales, torch.float8_e4m3fn), _SCALE_2: _SCALAR}
        else:
            scale = torch.Size([rows] if grid.granularity == "channel" else [])
            specs = {"": (layer.shape, torch.float8_e4m3fn), "_scale": (scale, torch.float32)}
        return specs | ({INPUT_SCALE: _SCALAR} if layer.scheme.static_input else {})

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix.

        Raises:
            FormatError: The input is multiplied, or a scale of scales has no inverse that gives it back.
        """
        if input_multiplier is not None or tensor.input_order is not None:
            raise FormatError("modelopt has no place for what a layer does to its input; use format native.")
        parts = _layout(scheme).pack(tensor)
        stored = {"": parts["_packed"] if "_packed" in parts else parts[""], "_scale": parts["_scale"]}
        if tensor.global_scale is not None:
            stored[_SCALE_2] = _inverse(tensor.global_scale).reshape(())
        else:
            shape = [-1] if tensor.grid.granularity == "channel" else []
            stored["_scale"] = stored["_scale"].float().reshape(shape)
        for suffix, scale in pack_input(scheme, input_scale, input_zero, torch.float32).items():
            stored[INPUT_SCALE] = (_inverse(scale) if suffix == INPUT_GLOBAL_SCALE else scale).reshape(())
        return stored

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors.

        Raises:
            FormatError: A scale of scales is zero or no number.
        """
        if not scheme.weight.tensor_scaled:
            return FLOAT_QUANTIZED.unpack(
                {"": parts[""], "_scale": parts["_scale"].reshape(-1, 1)}, scheme.weight, in_features
            )
        second = parts[_SCALE_2].reshape(1)
        if not bool((second.isfinite() & (second > 0)).all()):
            raise FormatError(f"its weight_scale_2 is {float(second)}; it is a positive number. Quantize it again.")
        shared = {"_packed": parts[""], "_scale": parts["_scale"], "_global_scale": second.reciprocal()}
        return _layout(scheme).unpack(shared, scheme.weight, in_features)

    def unpack_input(
        self, parts: Mapping[str, Tensor], scheme: Scheme, layer: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """The static scale of an input, of NVFP4 what its scales are divided by."""
        found: dict[str, Tensor] = {}
        if INPUT_SCALE in parts and scheme.activation is not None:
            scale = parts[INPUT_SCALE].reshape(1)
            inverse = scheme.activation.tensor_scaled
            found = {INPUT_GLOBAL_SCALE: scale.reciprocal()} if inverse else {INPUT_SCALE: scale}
        return unpack_input(found, scheme, layer)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: modelopt``, its algorithm, and the modules that stay float."""
        label, grid = layers[0].scheme.label, layers[0].scheme.weight
        algorithm = next(name for name, labels in _ALGORITHMS.items() if label in labels)
        numbers: dict[str, Any] = {"dynamic": False, "num_bits": grid.bits, "type": "float"}
        numbers |= {"group_size": grid.group_size} if grid.group_size else {}
        inputs = numbers if any(layer.scheme.static_input for layer in layers) else None
        return {
            "quant_method": self.method,
            "quant_algo": algorithm,
            "config_groups": {"group_0": {"input_activations": inputs, "weights": numbers, "targets": ["Linear"]}},
            "ignore": sorted(ignored),
        }

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether it is of this method.

        Raises:
            FormatError: Its algorithm is none that goldstick reads.
        """
        if not super().claims(config):
            return False
        algorithm = config.get("quant_algo")
        if algorithm not in (*_ALGORITHMS, "MIXED_PRECISION"):
            raise FormatError(
                f"goldstick reads Model Optimizer's {', '.join(_ALGORITHMS)}, and this checkpoint has "
                f"{shown(algorithm)}. Quantize the float model it came from."
            )
        return True

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: what is stored as codes is quantized."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the dtype of the codes says, and whether a scale of the input stands beside them."""

        def scheme_of(codes: str, site: str) -> Scheme | None:
            scale = tensors.get(part_name(codes, "_scale"))
            if tensors[codes].dtype is torch.uint8:
                return Scheme.parse("nvfp4" if part_name(codes, INPUT_SCALE) in tensors else "nvfp4a16")
            return Scheme.parse("fp8-dynamic" if scale is not None and scale.shape else "fp8")

        return scheme_of

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """What is not stored as codes."""
        return lambda module, in_block: in_block is not None

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """Codes stand under the weight's own name."""
        codes = dtype in (torch.uint8, torch.float8_e4m3fn) and not name.endswith("_scale")
        return name if codes else None

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Bits of a code and number of groups."""
        bits = 8 * codes.dtype.itemsize * codes.shape[-1] / in_features
        return bits, scales.shape[-1] if len(scales.shape) > 1 else 1


MODELOPT = ModelOptimizer()


def beside_config(table: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ``quantization_config`` that a file ``hf_quant_config.json`` stands for; ``None`` where it says nothing."""
    found = table.get("quantization")
    if not isinstance(found, Mapping):
        return None
    cache = {"kv_cache_scheme": _FP8_CACHE} if found.get("kv_cache_quant_algo") == "FP8" else {}
    return {"quant_method": MODELOPT.method, **found, **cache}


def _inverse(scale: Tensor) -> Tensor:
    inverse = scale.reciprocal()
    if not torch.equal(inverse.reciprocal(), scale):
        raise FormatError(
            "modelopt stores the inverse of a scale of scales, and that of a layer does not give it back in float32. "
            "Powers of two do: search the ranges (range_search: mse), or use format compressed-tensors."
        )
    return inverse


def _layout(scheme: Scheme) -> CodeLayout:
    found = layout_of(scheme)
    assert found is not None  # of the schemes that are not refused
    return found
