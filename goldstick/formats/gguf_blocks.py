"""Block types of ggml, packed from quantized tensors and unpacked to them.

A row of a matrix is a row of blocks, of 32 weights or, as superblocks, of 256 (``gguf_superblocks``). A block of 32
begins with its scale d in float16, where nothing else is said, then

- Q8_0, 34 bytes: 32 signed bytes q; w = q · d.
- Q4_0, 18 bytes: 16 bytes, of which byte k holds element k in its low and element 16 + k in its high four bits;
  w = (u − 8) · d.
- Q4_1, 20 bytes: the minimum m in float16, then 16 bytes as in Q4_0; w = u · d + m.
- Q5_0, 22 bytes, and Q5_1, 24 bytes: the same with the fifth bits, bit k for element k, in 4 bytes before the others;
  w = (u − 16) · d, and u · d + m.
- IQ4_NL, 18 bytes: 16 bytes as in Q4_0; w = value of the table · d.
- MXFP4, 17 bytes: in the place of d one byte e, then 16 bytes as in Q4_0; w = the FP4 number of the code · 2^(e − 127).

NVFP4 has blocks of 64, 36 bytes: an E4M3 scale for each 16 weights, then for each of the four 8 bytes, of which byte k
holds element k in its low and element 8 + k in its high four bits; w = FP4 number · scale, times what the tensor beside
it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.grid import BLOCK, POWERS_OF_TWO, SUPERBLOCK, Grid
from goldstick.core.minimums import minimums_of, scales_with_zeros, zeros_of
from goldstick.core.mixture import MIXTURES
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import NUMBER_FORMATS
from goldstick.core.stored_scale import pack_scale, unpack_scale
from goldstick.errors import FormatError
from goldstick.formats.gguf_superblocks import LAYOUTS, Parts
from goldstick.formats.weight_only import float16_scales

#: Weights of a block of NVFP4.
_FP4_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class BlockType:
    """A ggml type whose blocks goldstick packs.

    Attributes:
        name: Its name in ggml.
        grid: The grid its codes live on.
        file_type: ``general.file_type`` of a file whose matrices are mostly of it, as llama.cpp numbers them.
    """

    name: str
    grid: Grid
    file_type: int

    @property
    def weights(self) -> int:
        """Weights of a block."""
        return _FP4_BLOCK if self.grid.tensor_scaled else self.grid.superblock or BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        if self.grid.superblock:
            return LAYOUTS[self.name.lower()].nbytes
        if self.grid.tensor_scaled:
            return 4 + _FP4_BLOCK // 2
        return self.head + 2 * (not self.grid.symmetric) + BLOCK * self.grid.bits // 8

    @property
    def head(self) -> int:
        """Bytes of the scale that a small block begins with."""
        return 1 if self.grid.scale == POWERS_OF_TWO else 2

    @property
    def suffix(self) -> str:
        """What is appended to a weight's name for the tensor of its blocks."""
        return f"_{self.name.lower()}"


def _small(name: str, bits: int, file_type: int, *, symmetric: bool = True) -> BlockType:
    grid = Grid(bits=bits, symmetric=symmetric, granularity="group", group_size=BLOCK)
    return BlockType(name=name, grid=grid, file_type=file_type)


def _named(name: str, scheme: str, file_type: int) -> BlockType:
    return BlockType(name=name, grid=NUMBER_FORMATS[scheme][0], file_type=file_type)


BLOCK_TYPES = (
    _small("Q4_0", 4, 2),
    _small("Q4_1", 4, 3, symmetric=False),
    _small("Q5_0", 5, 8),
    _small("Q5_1", 5, 9, symmetric=False),
    _small("Q8_0", 8, 7),
    _named("IQ4_NL", "iq4a16", 25),
    _named("Q2_K", "q2_k", 10),
    _named("Q3_K", "q3_k", 11),
    _named("Q4_K", "q4_k", 14),
    _named("Q5_K", "q5_k", 16),
    _named("Q6_K", "q6_k", 18),
    _named("IQ4_XS", "iq4_xs", 30),
    _named("MXFP4", "mxfp4a16", 38),
)
#: NVFP4's scales have a scale of their own, in a tensor beside the blocks.
NVFP4 = _named("NVFP4", "nvfp4a16", 39)
_PACKED = (*BLOCK_TYPES, NVFP4)
#: Types of which a mixture has several matrices beside those of its general type.
_SECOND = {
    "Q2_K": ("Q3_K", "q2_k_m"), "Q3_K": ("Q4_K", "q3_k_m"), "Q4_K": ("Q6_K", "q4_k_m"), "Q5_K": ("Q6_K", "q5_k_m"),
}  # fmt: skip
_FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, **{kind.name: kind.file_type for kind in _PACKED}}
BY_SUFFIX = {kind.suffix: kind for kind in _PACKED}


def block_type(grid: Grid) -> BlockType | None:
    """The type whose blocks hold codes of a grid, where they are small whatever its group size; or ``None``."""
    if grid.granularity != "group":
        found = [kind for kind in _PACKED if not kind.grid.superblock and _alike(kind.grid, grid)]
    else:
        found = [kind for kind in _PACKED if _alike(kind.grid, grid)]
    return found[0] if found else None


def _alike(kind: Grid, grid: Grid) -> bool:
    if (kind.bits, kind.symmetric, kind.element, kind.scale) != (grid.bits, grid.symmetric, grid.element, grid.scale):
        return False
    return kind.superblock is None or kind == grid


def file_type_of(types: Sequence[str]) -> int:
    """``general.file_type`` of a file whose matrices have given types: that of the mixture they are, or of the most.

    Readers show it and decide nothing by it.
    """
    counts = Counter(types)
    most = max(counts, key=lambda kind: (counts[kind], kind))
    if most == "Q3_K" and counts["Q5_K"] and not counts["Q4_K"]:
        return MIXTURES["q3_k_l"].file_type
    second, mixture = _SECOND.get(most, ("", ""))
    return MIXTURES[mixture].file_type if counts[second] > 1 else _FILE_TYPES[most]  # more than the head


def pack_blocks(tensor: QuantizedTensor, kind: BlockType) -> Tensor:
    """Codes, scales and zeros as blocks, uint8 [..., out, in / weights of a block · bytes of a block].

    A scale that is shared by several small blocks is repeated in each.

    Raises:
        FormatError: A scale is no float16 number, or a zero does not survive being stored as a minimum.
    """
    *lead, in_features = tensor.codes.shape
    if kind.grid.superblock:
        return _pack_superblocks(tensor, kind).reshape(*lead, -1)
    if kind is NVFP4:
        return _pack_fp4(tensor).reshape(*lead, -1)
    repeats = tensor.grid.group_width(in_features) // BLOCK
    powers = kind.grid.scale == POWERS_OF_TWO
    stored = pack_scale(tensor.scale, kind.grid) if powers else float16_scales(tensor.scale, "GGUF")
    scale = stored.repeat_interleave(repeats, dim=-1)  # [..., out, blocks]
    codes = tensor.codes.reshape(*lead, -1, BLOCK)
    heads = [scale]
    if tensor.zero is not None:
        zero = tensor.zero.float().repeat_interleave(repeats, dim=-1)
        constant = (codes == 0).all(-1) & (zero.abs() == 1)
        heads = [scale.masked_fill(constant, 0.0), _minima(scale, zero, kind)]
    heads = [_bytes(head) for head in heads]
    if kind.grid.bits == 8:
        # Subtracting 128 from a byte, as a signed one, is turning its highest bit.
        return torch.cat([*heads, codes ^ 0x80], dim=-1).reshape(*lead, -1)
    if kind.grid.bits == 5:
        heads.append(_fifth_bits(codes))
    return torch.cat([*heads, codes[..., :16] & 15 | (codes[..., 16:] & 15) << 4], dim=-1).reshape(*lead, -1)


def unpack_blocks(blocks: Tensor, kind: BlockType) -> QuantizedTensor:
    """The inverse of :func:`pack_blocks`: groups of 32 with the stored float16 scales, or superblocks.

    The zero of a block with a minimum is −m / d, rounded to float32, perhaps a fraction. A block of d = 0 is constant:
    it becomes the codes 0 with the scale |m| and the zero ∓1, which give m exactly.
    """
    if kind.grid.superblock:
        return _unpack_superblocks(blocks, kind)
    if kind is NVFP4:
        return _unpack_fp4(blocks)
    parts = blocks.reshape(*blocks.shape[:-1], -1, kind.nbytes)
    body = parts[..., kind.nbytes - BLOCK * min(kind.grid.bits & 12, 8) // 8 :]
    codes = body ^ 0x80 if kind.grid.bits == 8 else torch.cat([body & 15, body >> 4], dim=-1)
    if kind.grid.bits == 5:
        bits = parts[..., kind.nbytes - 20 : kind.nbytes - 16]
        codes = codes | _from_fifth_bits(bits) << 4
    if kind.grid.scale == POWERS_OF_TWO:
        scale, zero = unpack_scale(parts[..., 0], kind.grid), None
    else:
        scale, zero = _halves(parts[..., :2]), None
    if not kind.grid.symmetric:
        scale, zero, constant = scales_with_zeros(scale, _halves(parts[..., 2:4]))
        codes = codes.masked_fill(constant.unsqueeze(-1), 0)
    return QuantizedTensor(codes=codes.flatten(-2).contiguous(), scale=scale, zero=zero, grid=kind.grid)


def lost_minima(scale: Tensor, zero: Tensor) -> int:
    """How many zeros would be others after being stored as minima, −zero · scale in float16, and read back."""
    half = scale.to(torch.float16)
    return int((zeros_of(half, minimums_of(half, zero)) != zero.float()).sum())


def _pack_superblocks(tensor: QuantizedTensor, kind: BlockType) -> Tensor:
    assert tensor.global_scale is not None
    count = tensor.codes.numel() // SUPERBLOCK
    steps = tensor.global_scale.transpose(-1, -2).reshape(count, -1)
    parts = Parts(
        codes=tensor.codes.reshape(count, SUPERBLOCK),
        scales=tensor.scale.reshape(count, -1).short(),
        minimums=None if tensor.zero is None else tensor.zero.reshape(count, -1).short(),
        steps=float16_scales(steps, "GGUF"),
    )
    return torch.cat(LAYOUTS[kind.name.lower()].to_fields(parts), dim=-1)


def _unpack_superblocks(blocks: Tensor, kind: BlockType) -> QuantizedTensor:
    layout, lead = LAYOUTS[kind.name.lower()], blocks.shape[:-1]
    parts = layout.to_parts(list(torch.split(blocks.reshape(-1, layout.nbytes), list(layout.sizes), dim=-1)))
    steps = parts.steps.float().reshape(*lead, -1, parts.steps.shape[-1])
    return QuantizedTensor(
        codes=parts.codes.reshape(*lead, -1),
        scale=parts.scales.reshape(*lead, -1).float(),
        zero=None if parts.minimums is None else parts.minimums.reshape(*lead, -1).float(),
        grid=kind.grid,
        global_scale=steps.transpose(-1, -2).contiguous(),
    )


def _pack_fp4(tensor: QuantizedTensor) -> Tensor:
    codes = tensor.codes.reshape(-1, 4, 2, 8)
    scales = pack_scale(tensor.scale, NVFP4.grid).view(torch.uint8).reshape(-1, 4)
    return torch.cat([scales, (codes[:, :, 0] & 15 | (codes[:, :, 1] & 15) << 4).flatten(1)], dim=-1)


def _unpack_fp4(blocks: Tensor) -> QuantizedTensor:
    """The blocks with a scale of scales of 1."""
    *lead, _ = blocks.shape
    parts = blocks.reshape(-1, NVFP4.nbytes)
    body = parts[:, 4:].reshape(-1, 4, 8)
    stored = parts[:, :4].contiguous()
    if bool((stored > 0x7E).any()):
        raise FormatError("its NVFP4 blocks hold scales that are negative or no numbers. Quantize it again.")
    return QuantizedTensor(
        codes=torch.stack([body & 15, body >> 4], dim=-2).reshape(*lead, -1),
        scale=unpack_scale(stored.view(torch.float8_e4m3fn), NVFP4.grid).reshape(*lead, -1),
        zero=None,
        grid=NVFP4.grid,
        global_scale=torch.ones(*(1 for _ in lead), 1, dtype=torch.float32),
    )


def _minima(scale: Tensor, zero: Tensor, kind: BlockType) -> Tensor:
    changed = lost_minima(scale, zero)
    if changed:
        raise FormatError(
            f"{kind.name} stores −zero · scale in float16, and {changed} of {zero.numel()} zeros of a layer would be "
            "others when read back. Quantize with a symmetric scheme, or use another format."
        )
    return minimums_of(scale, zero)


def _fifth_bits(codes: Tensor) -> Tensor:
    bits = (codes >> 4).reshape(*codes.shape[:-1], 4, 8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def _from_fifth_bits(stored: Tensor) -> Tensor:
    return (stored.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _bytes(numbers: Tensor) -> Tensor:
    return numbers.contiguous().unsqueeze(-1).view(torch.uint8)


def _halves(pairs: Tensor) -> Tensor:
    return pairs.contiguous().view(torch.float16).squeeze(-1)
