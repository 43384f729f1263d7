"""Fine-grained FP8, as DeepSeek-V3 and Qwen3 are published: ``quant_method: fp8``, blocks of 128 × 128 or tensors.

``X`` float8_e4m3fn [out, in] and ``X_scale_inv``, which multiplies: [⌈out/128⌉, ⌈in/128⌉], or [] for the tensor. A
static input has ``activation_scale`` [] beside it. Where scales are float32, finer than the dtype that the model
computes in, as mostly, goldstick runs such a checkpoint dequantized, as transformers does without a GPU. With
``scale_fmt: ue8m0`` scales are powers of two, stored as float32 (DeepSeek-V3.1) or as exponents in float8_e8m0fnu
(V4), and so are those of the inputs: read, run dequantized, and not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import FLOAT_INPUTS, Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.compressed_layouts import FLOAT_QUANTIZED
from goldstick.formats.input_scale import INPUT_SCALE, pack_input, unpack_input
from goldstick.formats.site_table import SiteTable

_SCALE, _ACTIVATION = "_scale_inv", ".activation_scale"
#: The ``scale_fmt`` of scales that are powers of two.
_POWERS = "ue8m0"
_TENSOR, _TOKENS = Grid(element="e4m3", granularity="tensor"), Grid(element="e4m3", granularity="token")


class FineGrainedFP8(StorageFormat):
    """FP8 codes under the weight's own name, each with the scale of its block or tensor."""

    name = "fp8"
    method = "fp8"
    codes_suffix = ""
    scale_suffix = _SCALE
    loading = "Load it with transformers, vLLM or SGLang, or with `goldstick.load(directory)`."

    def refuses(self, layer: StoredLayer) -> str | None:
        """All but FP8 by block or tensor, whose inputs its readers quantize as well."""
        grid, inputs = layer.scheme.weight, layer.scheme.activation
        if layer.kind not in ("linear", "experts") or not layer.name.endswith(".weight") or len(layer.shape) != 2:
            return f"the fp8 format holds linear layers, not {_article(layer.kind)} weight stored as {layer.name}"
        if grid.element != "e4m3" or grid.scale is not None or grid.granularity not in ("block", "tensor"):
            return "the fp8 format holds FP8 weights by block or tensor (schemes fp8-block, fp8)"
        if layer.kind == "experts" and inputs is None:
            return None
        if inputs not in ((_inputs(grid),) if grid.granularity == "block" else (_TENSOR, _TOKENS)):
            return "readers of the fp8 format quantize inputs to FP8, too (schemes fp8-block, fp8)"
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Mixtures: its config says one thing of all layers."""
        if ties:
            return f"{next(iter(ties))} runs on a quantized embedding, which the fp8 format cannot say"
        kinds = {(layer.scheme.weight, layer.scheme.static_input) for layer in layers}
        return "its config says one scheme for all layers, and these have several" if len(kinds) > 1 else None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        specs = _from_shared(FLOAT_QUANTIZED.specs(layer.shape, layer.scheme.weight, scale_dtype))
        if layer.scheme.weight.granularity == "tensor":
            specs[_SCALE] = torch.Size([]), scale_dtype
        return specs | ({_ACTIVATION: (torch.Size([]), scale_dtype)} if layer.scheme.static_input else {})

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
            FormatError: The input is multiplied.
        """
        if input_multiplier is not None or tensor.input_order is not None:
            raise FormatError("fp8 has no place for what a layer does to its input; use format native.")
        parts = _from_shared(FLOAT_QUANTIZED.pack(tensor))
        beside = pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)
        if tensor.grid.granularity == "tensor":
            parts[_SCALE] = parts[_SCALE].reshape(())
        return parts | ({_ACTIVATION: beside[INPUT_SCALE].reshape(())} if beside else {})

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        scale = parts[_SCALE]
        shared = {"": parts[""], "_scale": scale.float() if scale.dtype is torch.float8_e8m0fnu else scale}
        return FLOAT_QUANTIZED.unpack(shared, scheme.weight, in_features)

    def unpack_input(
        self, parts: Mapping[str, Tensor], scheme: Scheme, layer: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """The static scale of an input."""
        found = {INPUT_SCALE: parts[_ACTIVATION].reshape(1)} if _ACTIVATION in parts else {}
        return unpack_input(found, scheme, layer)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: fp8``: one block size, one way to scale inputs, and the modules that stay float."""
        size = layers[0].scheme.weight.group_size
        return {
            "quant_method": self.method,
            "fmt": "e4m3",
            "activation_scheme": "static" if layers[0].scheme.static_input else "dynamic",
            "weight_block_size": [size, size] if size else None,
            "modules_to_not_convert": sorted(ignored),
        }

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether it is of this method.

        Raises:
            FormatError: Its scales are of an unknown kind, or its experts FP4.
        """
        if not super().claims(config):
            return False
        for key, known in (("scale_fmt", ("float", _POWERS)), ("expert_dtype", ("fp8",)), ("fmt", ("e4m3",))):
            if config.get(key) not in (None, *known):
                raise FormatError(
                    f"goldstick reads fp8 checkpoints with {key} {' or '.join(map(repr, known))}, and not "
                    f"{shown(config[key])}."
                )
        return True

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: what is stored as FP8 is quantized."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """The same for all.

        Raises:
            FormatError: The blocks are no squares, or inputs are neither dynamic nor static.
        """
        block, when = config.get("weight_block_size"), config.get("activation_scheme", "dynamic")
        if when not in ("dynamic", "static"):
            raise FormatError(f"An fp8 config's activation_scheme is 'dynamic' or 'static', not {shown(when)}.")
        if block is None:
            scheme = Scheme(weight=_TENSOR, activation=_TENSOR if when == "static" else _TOKENS)
            return lambda codes, site: scheme
        if not (isinstance(block, list) and len(block) == 2 and type(block[0]) is int and block[0] == block[1] > 1):
            raise FormatError(f"goldstick reads FP8 weights in square blocks, and not in {shown(block)}.")
        grid = Grid(element="e4m3", granularity="block", group_size=block[0])
        return lambda codes, site: Scheme(weight=grid, activation=_inputs(grid))

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """What is not stored as FP8."""
        return lambda module, in_block: in_block is not None

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """FP8 codes stand under the weight's own name."""
        return name if dtype is torch.float8_e4m3fn else None

    def runs_in_float(self, config: Mapping[str, Any], scales: Iterable[torch.dtype], dtype: torch.dtype) -> bool:
        """Where scales are finer than the model's dtype, or those of inputs would have to be powers of two."""
        finer = (torch.promote_types(found, dtype) is not dtype for found in scales if found.itemsize > 1)
        return config.get("scale_fmt") == _POWERS or any(finer)

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Bits of a code and number of groups."""
        return 8, scales.shape[-1] if scales.shape else 1


FP8 = FineGrainedFP8()


def _inputs(grid: Grid) -> Grid | None:
    """The grid of inputs beside weights in blocks; ``None`` for sizes that goldstick has no inputs of."""
    inputs = Grid(element="e4m3", granularity="group", group_size=grid.group_size)
    return inputs if inputs in FLOAT_INPUTS.values() else None


def _from_shared(parts: dict[str, Any]) -> dict[str, Any]:
    return {_SCALE if suffix == "_scale" else suffix: part for suffix, part in parts.items()}


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
