"""AWQ in its GEMM layout: what AutoAWQ writes, and transformers (with its packages), vLLM and SGLang read.

For a linear layer ``P`` of weight [out, in]: ``P.qweight`` int32 [in, out / 8], ``P.qzeros`` int32 [groups, out / 8]
and ``P.scales`` float16 [groups, out]. Field k of a word, from the lowest, holds the output 8·word + (0, 2, 4, 6, 1, 3,
5, 7)[k]. Codes have 4 bits, zeros are stored as they are; a symmetric layer has the zero 8 everywhere, and is known by
that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any, ClassVar

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StoredLayer, StoredTensor
from goldstick.formats.input_scale import part_name
from goldstick.formats.name_patterns import excepted_names
from goldstick.formats.weight_only import (
    WORD_BITS,
    WeightOnly,
    declared_grid,
    float16_scales,
    refuse_inputs,
    refuses_weight_only,
    refuses_words,
    stored_group_size,
    whole_zeros,
    zeros_of,
)

BITS = 4
#: Which of eight outputs lies in field k of a word, and the inverse.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_INVERSE = tuple(_ORDER.index(output) for output in range(8))
#: A word of eight zeros of 8, as a signed number.
_SYMMETRIC_WORD = 0x88888888 - (1 << 32)


class Awq(WeightOnly):
    """The tensors and config of AWQ files."""

    name = "awq"
    method = "awq"
    title = "AWQ"
    packages: ClassVar[tuple[str, ...]] = ("gptqmodel",)

    def refuses(self, layer: StoredLayer) -> str | None:
        """Kinds and widths that the GEMM layout does not hold."""
        grid = layer.scheme.weight
        if reason := refuses_weight_only(layer, self.title):
            return reason
        if grid.bits != BITS:
            return f"AWQ's GEMM layout holds codes of 4 bits, not {grid.bits}"
        if layer.name == "lm_head.weight":
            return "AWQ readers keep the head in float; exclude it"
        if not grid.divides(layer.shape[-1]):
            return f"AWQ holds whole groups, and its {layer.shape[-1]} inputs do not divide into {grid.group_size}"
        return refuses_words(layer, self.title, 1, 8)

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix; scales are float16 whatever the model is."""
        out_features, in_features = layer.shape
        groups = layer.scheme.weight.groups(in_features)
        return {
            ".qweight": (torch.Size([in_features, out_features // 8]), torch.int32),
            ".qzeros": (torch.Size([groups, out_features // 8]), torch.int32),
            ".scales": (torch.Size([groups, out_features]), torch.float16),
        }

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
            FormatError: A scale is no float16 number, a zero no whole number, or the input is touched.
        """
        refuse_inputs(self.title, scheme, input_scale, input_zero, input_multiplier, tensor.input_order)
        zeros = whole_zeros(tensor, self.title)
        return {
            ".qweight": pack_rows(_reordered(tensor.codes.T, _ORDER), BITS),
            ".qzeros": pack_rows(_reordered(zeros.T, _ORDER), BITS),
            ".scales": float16_scales(tensor.scale, self.title).T.contiguous(),
        }

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors, with scales as they are stored.

        Raises:
            FormatError: The scheme is symmetric and a zero is not 8.
        """
        out_features = 8 * parts[".qweight"].shape[-1]
        codes = _reordered(unpack_rows(parts[".qweight"], BITS, out_features), _INVERSE)
        zeros = _reordered(unpack_rows(parts[".qzeros"], BITS, out_features), _INVERSE)
        zero = zeros_of(zeros.T.contiguous(), scheme.weight, self.title)
        scale = parts[".scales"].T.contiguous()
        return QuantizedTensor(codes=codes.T.contiguous(), scale=scale, zero=zero, grid=scheme.weight)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: awq``, version gemm. ``zero_point`` is always true, since zeros are always stored.

        Raises:
            FormatError: Readers, which look for parts of names, would take a quantized layer for one that stays float.
        """
        if reason := self.refuses_together(layers, ties):
            raise FormatError(f"awq cannot hold this: {reason}.")
        for name in ignored:
            caught = next((layer.name for layer in layers if name in layer.name), None)
            if caught:
                raise FormatError(
                    f"awq cannot hold this: {name} stays float, and readers would take {caught}, whose name contains "
                    "it, to do so too. Use --format compressed-tensors."
                )
        return {
            "quant_method": self.method,
            "bits": BITS,
            "group_size": stored_group_size(layers[0].scheme.weight),
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(ignored) or None,
        }

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the config says, and each layer's zeros of symmetry; these are read."""

        return lambda codes, site: awq_scheme(config, stored_zeros(codes, tensors))

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """Modules whose name contains a listed one, and all outside the blocks."""
        listed = frozenset(excepted_names(config, "modules_to_not_convert"))
        lengths = sorted({len(name) for name in listed})

        def stays_float(module: str, in_block: bool | None) -> bool:
            # A listed name may stand anywhere in a module's, whose parts are fewer than a list of names may be long.
            parts = (module[at : at + size] for size in lengths for at in range(len(module) - size + 1))
            return in_block is False or any(part in listed for part in parts)

        return stays_float

    def matrix_shape(self, name: str, tensors: Mapping[str, StoredTensor], in_features: int) -> torch.Size:
        """Words hold eight outputs each."""
        return torch.Size([8 * tensors[name].shape[-1], in_features])

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Words are as many as the outputs need."""
        return codes.shape[-1] * WORD_BITS / max(1, scales.shape[-1]), scales.shape[-2]


AWQ = Awq()


def _reordered(codes: Tensor, order: Sequence[int]) -> Tensor:
    """Codes [rows, n] with every eight of a row put in another order."""
    return codes.reshape(len(codes), -1, 8)[..., list(order)].reshape(len(codes), -1)


def stored_zeros(codes: str, tensors: Mapping[str, StoredTensor]) -> Tensor:
    """The words of zeros of the layer whose codes a tensor holds.

    Raises:
        CheckpointError: They are missing, or no words.
    """
    name = part_name(codes, ".qzeros")
    if name not in tensors:
        raise CheckpointError(f"The tensor {name!r} is missing, which AWQ layers have.")
    if tensors[name].dtype is not torch.int32:
        raise CheckpointError(f"The tensor {name!r} is of another type than int32.")
    return tensors[name].read()


def awq_scheme(config: Mapping[str, Any], qzeros: Tensor) -> Scheme:
    """The scheme of a layer of an AWQ checkpoint; symmetric where all its stored zeros are 8.

    Raises:
        FormatError: The config declares another layout than GEMM, or makes no sense.
    """
    for key in ("version", "format"):
        layout = config.get(key, "gemm")
        if not isinstance(layout, str) or layout.lower() != "gemm":
            raise FormatError(f"The AWQ config declares the {key} {shown(layout)}, and goldstick reads 'gemm'.")
    symmetric = bool((qzeros == _SYMMETRIC_WORD).all())
    return Scheme(weight=declared_grid(config, (BITS,), symmetric, "AWQ"))
