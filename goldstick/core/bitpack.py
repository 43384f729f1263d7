"""Codes of 1 to 8 bits as a dense stream of 32-bit words, row by row: the layout compressed-tensors stores.

Element k of a row occupies bits ``bits·k … bits·k + bits − 1`` of the row's bit stream, counted from the
least significant bit of its first word. Nothing is padded between elements: values of 3, 5, 6 and 7 bits
straddle words. Only the end of a row is filled up with zero bits to a whole word.

Eight elements always fill exactly ``bits`` bytes, so both directions work on bytes and see a word only as
four of them, lowest first (the byte order of every machine torch runs on).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from goldstick.core.rows import row_chunks
from goldstick.errors import FormatError


def packed_width(n: int, bits: int) -> int:
    """Count the 32-bit words that hold a row of ``n`` codes: ⌈n · bits / 32⌉."""
    _check_bits(bits)
    if n < 0:
        raise FormatError(f"a packed row cannot have {n} codes; give a length of 0 or more")
    return -(-n * bits // 32)


def pack_rows(codes: Tensor, bits: int) -> Tensor:
    """Pack unsigned codes, uint8 [..., n], into words, int32 [..., ⌈n·bits/32⌉].

    Raises:
        FormatError: ``codes`` is not uint8, or a code needs more than ``bits`` bits.
    """
    if codes.dtype != torch.uint8:
        raise FormatError(f"codes to be packed must be uint8, not {codes.dtype}: shift signed codes by 2^(bits-1)")
    n = codes.shape[-1]
    width = packed_width(n, bits)
    rows = codes.reshape(math.prod(codes.shape[:-1]), n)
    packed = torch.zeros(rows.shape[0], width, dtype=torch.int32, device=codes.device)
    if n and not codes.is_meta:
        for part in row_chunks(rows):
            _pack_into(packed[part].view(torch.uint8), rows[part], bits)
    return packed.reshape(*codes.shape[:-1], width)


def unpack_rows(packed: Tensor, bits: int, n: int) -> Tensor:
    """Unpack words, int32 [..., ⌈n·bits/32⌉], into unsigned codes, uint8 [..., n].

    Raises:
        FormatError: ``packed`` is not int32, or its rows are not as long as ``n`` codes make them.
    """
    width = packed_width(n, bits)
    if packed.dtype != torch.int32:
        raise FormatError(f"packed codes must be int32 words, not {packed.dtype}")
    if packed.shape[-1] != width:
        raise FormatError(
            f"rows of {n} codes of {bits} bits take {width} words, but the packed tensor has the shape "
            f"{list(packed.shape)}: check the number of bits and the unpacked shape"
        )
    lead = packed.shape[:-1]
    count = math.prod(lead)
    codes = torch.empty(count, n, dtype=torch.uint8, device=packed.device)
    if not packed.is_meta:
        # A copy where rows of one word lie in a transposed tensor: torch calls that contiguous, and has no bytes of it.
        rows = packed.reshape(count, width)
        rows = rows if rows.stride(-1) == 1 else rows.clone(memory_format=torch.contiguous_format)
        stream = rows.contiguous().view(torch.uint8)  # [rows, bytes]
        for part in row_chunks(codes):
            _unpack_into(codes[part], stream[part], bits)
    return codes.reshape(*lead, n)


def _pack_into(stream: Tensor, codes: Tensor, bits: int) -> None:
    """OR codes [rows, n] into the zeroed byte stream [rows, bytes]."""
    rows, n = codes.shape
    if bits < 8 and int(codes.max()) >> bits:
        raise FormatError(f"a code of {int(codes.max())} does not fit into {bits} bits")
    octets = torch.nn.functional.pad(codes, (0, -n % 8)).view(rows, -1, 8)
    packed = codes.new_zeros(rows, octets.shape[1], bits)  # eight codes fill `bits` bytes
    for k in range(8):
        byte, shift = divmod(k * bits, 8)
        packed[..., byte] |= octets[..., k] << shift
        if shift + bits > 8:
            packed[..., byte + 1] |= octets[..., k] >> (8 - shift)
    used = min(stream.shape[1], octets.shape[1] * bits)
    stream[:, :used] = packed.view(rows, -1)[:, :used]


def _unpack_into(codes: Tensor, stream: Tensor, bits: int) -> None:
    """Write the codes [rows, n] found in the byte stream [rows, bytes]."""
    rows, n = codes.shape
    octet_count = -(-n // 8)
    missing = octet_count * bits - stream.shape[1]
    packed = torch.nn.functional.pad(stream, (0, missing)) if missing > 0 else stream[:, : octet_count * bits]
    packed = packed.reshape(rows, octet_count, bits)
    octets = codes if n % 8 == 0 else codes.new_empty(rows, octet_count * 8)
    elements = octets.view(rows, octet_count, 8)
    mask = (1 << bits) - 1
    for k in range(8):
        byte, shift = divmod(k * bits, 8)
        element = packed[..., byte] >> shift
        if shift + bits > 8:
            element = element | (packed[..., byte + 1] << (8 - shift))
        elements[..., k] = element & mask
    if octets is not codes:
        codes.copy_(octets[:, :n])


def _check_bits(bits: int) -> None:
    """Refuse widths that are not 1 to 8 bits."""
    if not 1 <= bits <= 8:
        raise FormatError(f"codes have 1 to 8 bits, not {bits}")
