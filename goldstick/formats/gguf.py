"""GGUF: the files of llama.cpp, which transformers reads too.

A quantized matrix is one tensor of blocks (:mod:`goldstick.formats.gguf_blocks`). Everywhere in goldstick it goes by
the name of the float weight and the block type, ``….q_proj.weight_q4_0``, uint8 [out, bytes of a row], rows in the
order of the float model; names, order of rows and header of the file are the business of ``gguf_names``,
``gguf_tensors`` and ``gguf_file``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import BLOCK, POWERS_OF_TWO, Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.gguf_blocks import (
    BY_SUFFIX,
    NVFP4,
    BlockType,
    block_type,
    lost_minima,
    pack_blocks,
    unpack_blocks,
)
from goldstick.formats.site_table import SiteTable
from goldstick.formats.weight_only import refuse_inputs, refuses_scales, remarks_on_scales

#: Appended to a weight's name for the number that llama.cpp multiplies the products of NVFP4 blocks with.
FACTOR = "_scale_2"
#: The file in a checkpoint directory.
GGUF_NAME = "model.gguf"


class Gguf(StorageFormat):
    """The tensors and config of GGUF checkpoints."""

    name = "gguf"
    method = "gguf"
    scale_suffix = None
    loading = (
        "Run `model.gguf` with llama.cpp, load the directory with `goldstick.load(directory)`, or with transformers "
        'and the\npackages gguf and accelerate: `from_pretrained(directory, gguf_file="model.gguf")`, which runs '
        "it in float."
    )
    float16_scales = True
    rounds_zeros = True
    head_on_embedding = True
    in_gguf = True
    signed_scales = True
    holds_stacks = True

    def refuses(self, layer: StoredLayer) -> str | None:
        """Kinds, widths and group sizes that no block type holds."""
        grid = layer.scheme.weight
        if layer.kind not in ("linear", "transposed", "embedding", "experts") or len(layer.shape) not in (2, 3):
            return f"goldstick writes linear layers, embeddings and experts to GGUF files, not a {layer.kind} weight"
        if layer.scheme.activation:
            return f"GGUF files say nothing of rounded activations, and its scheme is {layer.scheme.label}"
        if layer.multiplied:
            return "'unfoldable: multiply' gives it a factor for each input, which GGUF has no place for"
        if block_type(grid) is None:
            return (
                f"its scheme is {layer.scheme.label}, and the blocks of GGUF that goldstick writes hold integers of 8, "
                "5 or 4 bits in groups of 32 (q8_0, q5_0, q5_1, q4_0, q4_1), IQ4 (iq4_nl, iq4_xs), MXFP4 (mxfp4a16), "
                "NVFP4 (nvfp4a16) or K-quants (q2_k to q6_k)"
            )
        if grid.superblock is not None:
            return None
        if grid.tensor_scaled:
            return _refuses_fp4(layer)
        width = grid.group_width(layer.shape[-1])
        if layer.shape[-1] % BLOCK or width % BLOCK:
            return (
                f"blocks of GGUF hold {BLOCK} weights of a row, so that {layer.shape[-1]} inputs in groups of {width} "
                f"do not fill them; choose a group size of {BLOCK} or a multiple of it"
            )
        if layer.float16_ranges or grid.scale == POWERS_OF_TWO:
            return None
        if layer.scale_dtype is not None and not grid.symmetric:  # known only while a run is planned
            return (
                "Q4_1 and Q5_1 store −zero · scale in float16, which asymmetric rounding makes exact only by chance; a "
                "symmetric scheme becomes Q4_0 or Q5_0"
            )
        return refuses_scales(layer, "GGUF")

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Nothing quantized; layers of several schemes are no matter, nor are heads that run on the embedding."""
        return None if layers else "nothing is quantized"

    def refuses_zeros(self, scale: Tensor, zero: Tensor, grid: Grid) -> str | None:
        """Zeros that are others when their minima are read back."""
        if grid.minimums:
            return None
        lost = lost_minima(scale, zero)
        if not lost:
            return None
        holders = "compressed-tensors, awq and gptq-v2 hold" if grid.are_codes(zero) else "only the native format holds"
        return (
            f"GGUF's Q4_1 and Q5_1 store −zero · scale in float16, and {lost} of its {zero.numel()} zeros would be "
            f"others when read back. Only symmetric weights are sure to fit; {holders} these."
        )

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """Which scales do not fit float16."""
        return remarks_on_scales([layer for layer in layers if layer.scheme.weight.scale is None], "GGUF")

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape of the blocks of a layer by suffix; scales are float16 whatever the model is."""
        kind = _kind(layer.scheme)
        *rows, in_features = layer.shape
        blocks = {kind.suffix: (torch.Size([*rows, in_features // kind.weights * kind.nbytes]), torch.uint8)}
        return blocks | ({FACTOR: (torch.Size([1]), torch.float32)} if kind is NVFP4 else {})

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The blocks of a layer by suffix.

        Raises:
            FormatError: A scale is no float16 number, a zero cannot be stored, or the input is touched.
        """
        refuse_inputs("GGUF", scheme, input_scale, input_zero, input_multiplier)
        kind = _kind(scheme)
        blocks = {kind.suffix: pack_blocks(tensor, kind)}
        return blocks if tensor.global_scale is None or kind is not NVFP4 else blocks | _factor(tensor.global_scale)

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its blocks, in groups of 32 or superblocks, with scales as they are stored."""
        kind = _kind(scheme)
        found = unpack_blocks(parts[kind.suffix], kind)
        if kind is not NVFP4:
            return found
        factor = parts[FACTOR]
        if not bool((factor.isfinite() & (factor > 0)).all()):
            raise FormatError(f"its NVFP4 scale is {float(factor)}; it is a positive number. Quantize it again.")
        return dataclasses.replace(found, global_scale=factor.reciprocal().reshape(1, 1))

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: gguf``; the file says everything else itself."""
        return {"quant_method": self.method}

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: the tensors say themselves what they are."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """The grid of a tensor's blocks."""
        return lambda codes, site: Scheme(weight=BY_SUFFIX[codes[len(_weight(codes) or codes) :]].grid)

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """The weight whose blocks a tensor holds."""
        return _weight(name)


GGUF = Gguf()


def _refuses_fp4(layer: StoredLayer) -> str | None:
    if layer.kind == "embedding" or len(layer.shape) != 2:
        return "llama.cpp multiplies products of NVFP4 matrices with a number, not rows of an embedding or of stacks"
    if layer.shape[-1] % NVFP4.weights:
        return f"NVFP4 blocks of GGUF hold {NVFP4.weights} weights of a row, which do not divide {layer.shape[-1]}"
    return None


def _factor(divisor: Tensor) -> dict[str, Tensor]:
    """What products are multiplied with: the inverse of what scales are divided by."""
    factor = divisor.reciprocal().reshape(1)
    if not torch.equal(factor.reciprocal(), divisor.reshape(1)):
        raise FormatError(
            "GGUF stores the inverse of a scale of scales, and that of a layer does not give it back in float32. "
            "Powers of two do: search the ranges (range_search: mse), or use format compressed-tensors."
        )
    return {FACTOR: factor}


def _weight(name: str) -> str | None:
    suffix = next((suffix for suffix in BY_SUFFIX if name.endswith(suffix)), None)
    return name.removesuffix(suffix) if suffix else None


def _kind(scheme: Scheme) -> BlockType:
    kind = block_type(scheme.weight)
    if kind is None:
        raise FormatError(f"GGUF has no blocks for {scheme.label}.")
    return kind
