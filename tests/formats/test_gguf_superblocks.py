"""Superblocks against loops that spell their layouts out."""

from __future__ import annotations

import numpy
import pytest
import torch

from goldstick.formats.gguf_blocks import BY_SUFFIX, pack_blocks, unpack_blocks

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def half(data: bytes) -> float:
    return float(numpy.frombuffer(data, dtype=numpy.float16)[0])


def q4_k(block: bytes) -> list[float]:
    """256 weights, one after the other, as the layout says: eight groups of 32 with 6-bit scales and minima."""
    d, dmin, scales, codes = half(block[:2]), half(block[2:4]), block[4:16], block[16:]
    numbers = []
    for group in range(8):
        if group < 4:
            scale, minimum = scales[group] & 63, scales[group + 4] & 63
        else:
            scale = scales[group + 4] & 15 | scales[group - 4] >> 6 << 4
            minimum = scales[group + 4] >> 4 | scales[group] >> 6 << 4
        chunk = codes[32 * (group // 2) : 32 * (group // 2) + 32]
        numbers += [d * scale * (byte >> 4 if group % 2 else byte & 15) - dmin * minimum for byte in chunk]
    return numbers


def q6_k(block: bytes) -> list[float]:
    """Two halves of 128: low four bits, high two bits, int8 scales of 16 weights."""
    low, high, scales, d = block[:128], block[128:192], block[192:208], half(block[208:])
    numbers = []
    for element in range(256):
        part, place = divmod(element, 128)
        quarter, column = divmod(place, 32)
        nibble = low[64 * part + 32 * (quarter % 2) + column] >> 4 * (quarter // 2) & 15
        bits = high[32 * part + column] >> 2 * quarter & 3
        scale = scales[element // 16] - 256 * (scales[element // 16] > 127)
        numbers.append(d * scale * ((nibble | bits << 4) - 32))
    return numbers


def iq4_xs(block: bytes) -> list[float]:
    """Eight groups of 32 with 6-bit scales, codes into a table."""
    d, high, low, codes = half(block[:2]), block[2] | block[3] << 8, block[4:8], block[8:]
    numbers = []
    for group in range(8):
        scale = (low[group // 2] >> 4 * (group % 2) & 15 | (high >> 2 * group & 3) << 4) - 32
        chunk = codes[16 * group : 16 * group + 16]
        numbers += [d * scale * IQ4[code] for code in [byte & 15 for byte in chunk] + [byte >> 4 for byte in chunk]]
    return numbers


READ_BY_HAND = {"q4_k": (q4_k, (0, 2)), "q6_k": (q6_k, (208,)), "iq4_xs": (iq4_xs, (0,))}


@pytest.mark.parametrize("name", READ_BY_HAND)
def test_random_bytes_are_the_numbers_of_loops_over_the_layout_and_come_back(name: str) -> None:
    kind, (read, places) = BY_SUFFIX[f"_{name}"], READ_BY_HAND[name]
    random = torch.Generator().manual_seed(7)
    blocks = torch.randint(0, 256, (40, kind.nbytes), generator=random, dtype=torch.uint8)
    for place in places:
        blocks[:, place : place + 2] = (torch.rand(40, 1, generator=random).half() / 64).view(torch.uint8)
    found = unpack_blocks(blocks.reshape(10, -1), kind)
    by_hand = torch.tensor([read(bytes(block.tolist())) for block in blocks], dtype=torch.float64).reshape(10, -1)
    torch.testing.assert_close(found.dequantize().double(), by_hand, rtol=1e-6, atol=1e-9)
    assert torch.equal(pack_blocks(found, kind), blocks.reshape(10, -1))
