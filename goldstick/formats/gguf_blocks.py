"""Blocks of 32 weights as ggml lays them out: Q4_0, Q4_1 and Q8_0, packed from codes and unpacked to them.

A row of a matrix is a row of blocks. A block begins with its scale d in float16:

- Q8_0, 34 bytes: d, then 32 signed bytes q; w = q · d.
- Q4_0, 18 bytes: d, then 16 bytes, of which byte k holds element k in its low and element 16 + k in its high four bits;
  w = (u − 8) · d.
- Q4_1, 20 bytes: d, the minimum m in float16, then 16 bytes as in Q4_0; w = u · d + m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import FormatError
from goldstick.formats.weight_only import float16_scales

#: Weights that share a scale.
BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class BlockType:
    """A ggml type whose blocks hold integer codes.

    Attributes:
        name: Its name in ggml.
        bits: Bits of a code.
        minimum: Whether a block stores its minimum; without one, codes are symmetric.
    """

    name: str
    bits: int
    minimum: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return 2 + 2 * self.minimum + BLOCK * self.bits // 8

    @property
    def suffix(self) -> str:
        """What is appended to a weight's name for the tensor of its blocks."""
        return f"_{self.name.lower()}"

    @property
    def grid(self) -> Grid:
        """The grid its codes live on."""
        return Grid(bits=self.bits, symmetric=not self.minimum, granularity="group", group_size=BLOCK)


BLOCK_TYPES = (
    BlockType(name="Q4_0", bits=4),
    BlockType(name="Q4_1", bits=4, minimum=True),
    BlockType(name="Q8_0", bits=8),
)
BY_SUFFIX = {kind.suffix: kind for kind in BLOCK_TYPES}


def block_type(grid: Grid) -> BlockType | None:
    """The type whose blocks hold codes of a grid, whatever its group size; ``None`` where there is none."""
    found = (kind for kind in BLOCK_TYPES if (kind.bits, kind.minimum) == (grid.bits, not grid.symmetric))
    return next(found, None) if grid.integers else None


def pack_blocks(tensor: QuantizedTensor, kind: BlockType) -> Tensor:
    """Codes, scales and zeros as blocks, uint8 [out, in / 32 · bytes of a block].

    A scale that is shared by several blocks is repeated in each.

    Raises:
        FormatError: A scale is no float16 number, or a zero does not survive being stored as a minimum.
    """
    out_features, in_features = tensor.codes.shape
    repeats = tensor.grid.group_width(in_features) // BLOCK
    scale = float16_scales(tensor.scale, "GGUF").repeat_interleave(repeats, dim=-1)  # [out, blocks]
    heads = [_bytes(scale)]
    if kind.minimum:
        assert tensor.zero is not None
        zero = tensor.zero.float().repeat_interleave(repeats, dim=-1)
        heads.append(_bytes(_minima(scale, zero)))
    codes = tensor.codes.reshape(out_features, -1, BLOCK)
    # Subtracting 128 from a byte, as a signed one, is turning its highest bit.
    body = codes ^ 0x80 if kind.bits == 8 else codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([*heads, body], dim=-1).reshape(out_features, -1)


def unpack_blocks(blocks: Tensor, kind: BlockType) -> QuantizedTensor:
    """The inverse of :func:`pack_blocks`: groups of 32 with the stored float16 scales.

    The zero of a Q4_1 block is −m / d, rounded to float32, perhaps a fraction. A block of d = 0 is constant: it becomes
    the codes 0 with the scale |m| and the zero ∓1, which give m exactly.
    """
    parts = blocks.reshape(len(blocks), -1, kind.nbytes)
    scale, body = _halves(parts[..., :2]), parts[..., 2 + 2 * kind.minimum :]
    codes = body ^ 0x80 if kind.bits == 8 else torch.cat([body & 15, body >> 4], dim=-1)
    zero = None
    if kind.minimum:
        minimum = _halves(parts[..., 2:4])
        zero = _zeros(scale, minimum)
        constant = (scale == 0) & (minimum != 0)
        scale = torch.where(constant, minimum.abs(), scale)
        codes = codes.masked_fill(constant.unsqueeze(-1), 0)
    return QuantizedTensor(codes=codes.flatten(-2).contiguous(), scale=scale, zero=zero, grid=kind.grid)


def lost_minima(scale: Tensor, zero: Tensor) -> int:
    """How many zeros would be others after being stored as minima, −zero · scale in float16, and read back."""
    half = scale.to(torch.float16)
    return int((_zeros(half, _stored(half, zero)) != zero.float()).sum())


def _minima(scale: Tensor, zero: Tensor) -> Tensor:
    changed = lost_minima(scale, zero)
    if changed:
        raise FormatError(
            f"Q4_1 stores −zero · scale in float16, and {changed} of {zero.numel()} zeros of a layer would be others "
            "when read back. Quantize with a symmetric scheme, which becomes Q4_0, or use another format."
        )
    return _stored(scale, zero)


def _stored(scale: Tensor, zero: Tensor) -> Tensor:
    return (-zero.double() * scale.double()).to(torch.float16) + 0.0  # no −0


def _zeros(scale: Tensor, minimum: Tensor) -> Tensor:
    ratio = -minimum.double() / scale.double()
    ratio = torch.where(scale == 0, -minimum.double().sign(), ratio)
    return ratio.float() + 0.0  # no −0


def _bytes(halves: Tensor) -> Tensor:
    return halves.contiguous().unsqueeze(-1).view(torch.uint8)


def _halves(pairs: Tensor) -> Tensor:
    return pairs.contiguous().view(torch.float16).squeeze(-1)
