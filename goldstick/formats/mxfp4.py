"""MXFP4 experts, as GPT-OSS is published: ``quant_method: mxfp4``, all experts of a layer in one pair of tensors.

``X_blocks`` uint8 [experts, out, in/32, 16], two FP4 codes to a byte, the first in the low half, and ``X_scales`` uint8
[experts, out, in/32], powers of two as exponents + 127. Everything else is float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import pack_scale, unpack_scale
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.site_table import SiteTable

_BLOCKS, _SCALES = "_blocks", "_scales"
_SCHEME = Scheme.parse("mxfp4a16")
_GROUP, _BYTES = 32, 16


class MXFP4Experts(StorageFormat):
    """Blocks of FP4 codes and their exponents for the fused experts of a layer."""

    name = "mxfp4"
    method = "mxfp4"
    codes_suffix = _BLOCKS
    scale_suffix = _SCALES
    loading = "Load it with transformers, vLLM or SGLang, or with `goldstick.load(directory)`."
    holds_stacks = True

    def refuses(self, layer: StoredLayer) -> str | None:
        """All but MXFP4 experts that the checkpoint stores in one tensor."""
        if layer.kind != "experts" or len(layer.shape) != 3:
            return "the mxfp4 format holds experts that are stored in one tensor, and nothing else"
        if layer.scheme != _SCHEME or layer.shape[-1] % _GROUP:
            return f"the mxfp4 format holds the scheme mxfp4a16, inputs in groups of {_GROUP}"
        return None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        *lead, inputs = layer.shape
        groups = torch.Size([*lead, inputs // _GROUP])
        return {_BLOCKS: (torch.Size([*groups, _BYTES]), torch.uint8), _SCALES: (groups, torch.uint8)}

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
            FormatError: Something is done to the input.
        """
        if any(value is not None for value in (input_scale, input_zero, input_multiplier, tensor.input_order)):
            raise FormatError("mxfp4 has no place for what a layer does to its input; use format native.")
        blocks = pack_rows(tensor.codes, tensor.grid.bits).view(torch.uint8)
        return {
            _BLOCKS: blocks.reshape(*tensor.scale.shape, _BYTES),
            _SCALES: pack_scale(tensor.scale, tensor.grid),
        }

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        words = parts[_BLOCKS].flatten(-2).contiguous().view(torch.int32)
        codes = unpack_rows(words, scheme.weight.bits, in_features)
        scale = unpack_scale(parts[_SCALES], scheme.weight)
        return QuantizedTensor(codes=codes, scale=scale, zero=None, grid=scheme.weight)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: mxfp4`` and the modules that stay float."""
        return {"quant_method": self.method, "modules_to_not_convert": sorted(ignored)}

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: what is stored in blocks is quantized."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """The same for all."""
        return lambda codes, site: _SCHEME

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """What is not stored in blocks."""
        return lambda module, in_block: in_block is not None

    def matrix_shape(self, name: str, tensors: Mapping[str, StoredTensor], in_features: int) -> torch.Size:
        """Codes have a dimension more, of groups."""
        return torch.Size([*tensors[name].shape[:-2], in_features])

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Bits of a code and number of groups."""
        return 8 * codes.shape[-1] * codes.shape[-2] / in_features, scales.shape[-1]


MXFP4 = MXFP4Experts()
