"""GGUF blocks: against a slow packer that spells the layout out, and against the gguf package's own reader."""

from __future__ import annotations

import re
import struct

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, QuantizationError
from goldstick.formats import FORMATS
from goldstick.formats.gguf_blocks import BLOCK_TYPES, BY_SUFFIX, BlockType, lost_minima, pack_blocks, unpack_blocks
from tests.support.column_formats import grid_of, layer_of, random_layer, random_superblocks, same

GGUF = FORMATS["gguf"]
Q4_0, Q4_1 = BY_SUFFIX["_q4_0"], BY_SUFFIX["_q4_1"]
SMALL = [kind for kind in BLOCK_TYPES if not kind.grid.superblock and kind.grid.integers]
KINDS = pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)
SUPERBLOCKS = [kind for kind in BLOCK_TYPES if kind.grid.superblock]


def half(number: float) -> bytes:
    return struct.pack("<e", number)


def slow_row(codes: list[int], scales: list[float], minima: list[float], kind: BlockType) -> bytes:
    """A row of blocks, byte by byte."""
    row = b""
    for number in range(len(codes) // 32):
        block = codes[32 * number : 32 * number + 32]
        row += half(scales[number])
        if not kind.grid.symmetric:
            row += half(minima[number])
        if kind.grid.bits == 8:
            row += bytes((code - 128) % 256 for code in block)
        else:
            if kind.grid.bits == 5:
                row += sum(block[k] // 16 << k for k in range(32)).to_bytes(4, "little")
            row += bytes(block[k] % 16 + 16 * (block[16 + k] % 16) for k in range(16))
    return row


def layer(kind: BlockType, rows: int, blocks: int, seed: int, repeats: int = 1) -> QuantizedTensor:
    """A random layer in groups of 32 · repeats whose zeros, if it has any, survive as minima."""
    tensor = random_layer(grid_of(kind.grid.bits, kind.grid.symmetric, 32 * repeats), rows, 32 * repeats * blocks, seed)
    if tensor.zero is None:
        return tensor
    scale = torch.exp2(tensor.scale.float().log2().round()).half()  # a power of two times a code is exact
    return QuantizedTensor(codes=tensor.codes, scale=scale, zero=tensor.zero, grid=tensor.grid)


@KINDS
@given(rows=st.integers(1, 9), blocks=st.integers(1, 4), repeats=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_blocks_are_those_of_a_slow_packer_and_come_back(
    kind: BlockType, rows: int, blocks: int, repeats: int, seed: int
) -> None:
    tensor = layer(kind, rows, blocks, seed, repeats)
    packed = pack_blocks(tensor, kind)
    scales = tensor.scale.repeat_interleave(repeats, dim=1)
    zeros = torch.zeros_like(scales) if tensor.zero is None else tensor.zero.repeat_interleave(repeats, dim=1)
    minima = -(zeros.double() * scales.double())
    slow = [
        slow_row(tensor.codes[row].tolist(), scales[row].tolist(), minima[row].tolist(), kind) for row in range(rows)
    ]
    assert packed.tolist() == [list(row) for row in slow]
    found = unpack_blocks(packed, kind)
    assert found.grid == kind.grid
    assert found.codes.equal(tensor.codes)
    assert found.scale.equal(scales)
    assert (found.zero is None) == (tensor.zero is None)
    assert found.zero is None or found.zero.equal(zeros)
    assert found.dequantize(torch.float32).equal(tensor.dequantize(torch.float32))


def dequantized_by_gguf(packed: Tensor, kind: BlockType) -> Tensor:
    weights = gguf.quants.dequantize(packed.numpy(), gguf.GGMLQuantizationType[kind.name])
    return torch.from_numpy(np.ascontiguousarray(weights))


@KINDS
def test_the_gguf_package_finds_the_same_weights(kind: BlockType) -> None:
    tensor = layer(kind, 7, 5, seed=1)
    assert dequantized_by_gguf(pack_blocks(tensor, kind), kind).equal(tensor.dequantize(torch.float32))


@KINDS
def test_blocks_that_the_gguf_package_quantized_are_read_and_written_byte_for_byte(kind: BlockType) -> None:
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(3))
    weight[0] = 0.0
    theirs = torch.from_numpy(gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind.name]).copy())
    found = unpack_blocks(theirs, kind)
    mine, exact = found.dequantize(torch.float32), dequantized_by_gguf(theirs, kind)
    if not kind.grid.symmetric:  # u·d + m is (u + m/d)·d up to the rounding of m/d
        assert (mine - exact).abs().max() <= 4e-7 * exact.abs().max()
    else:
        assert mine.equal(exact)
    assert pack_blocks(found, kind).equal(theirs)


@pytest.mark.parametrize("kind", SUPERBLOCKS, ids=lambda kind: kind.name)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_superblocks_are_what_the_gguf_package_reads_and_come_back(
    kind: BlockType, rows: int, blocks: int, seed: int
) -> None:
    tensor = random_superblocks(kind.grid, rows, 256 * blocks, seed)
    packed = pack_blocks(tensor, kind)
    assert packed.shape == (rows, blocks * kind.nbytes)
    assert dequantized_by_gguf(packed, kind).equal(tensor.dequantize())
    assert same(unpack_blocks(packed, kind), tensor)


@pytest.mark.parametrize("suffix", ["_iq4_nl", "_mxfp4"])
def test_blocks_of_tables_are_what_the_gguf_package_reads_and_come_back(suffix: str) -> None:
    kind = BY_SUFFIX[suffix]
    tensor = random_layer(kind.grid, 7, 96, 0)
    packed = pack_blocks(tensor, kind)
    assert dequantized_by_gguf(packed, kind).equal(tensor.dequantize(torch.float32))
    assert same(unpack_blocks(packed, kind), tensor)


def test_mxfp4_has_an_exponent_and_the_first_sixteen_codes_in_low_halves() -> None:
    block = [120, *(code + 16 * (15 - code) for code in range(16))]
    found = unpack_blocks(torch.tensor([block], dtype=torch.uint8), BY_SUFFIX["_mxfp4"])
    assert found.scale.tolist() == [[2.0**-7]]
    assert found.codes.tolist() == [[*range(16), *range(15, -1, -1)]]
    with pytest.raises(QuantizationError, match="e8m0 code 255"):
        unpack_blocks(torch.tensor([[255, *block[1:]]], dtype=torch.uint8), BY_SUFFIX["_mxfp4"])


def test_a_constant_block_of_q4_1_keeps_its_weight() -> None:
    block = torch.tensor(list(half(0.0) + half(-0.75) + bytes(range(16))), dtype=torch.uint8)[None]
    found = unpack_blocks(block, Q4_1)
    assert found.dequantize(torch.float32).eq(-0.75).all()
    assert found.scale.item() > 0
    assert dequantized_by_gguf(block, Q4_1).eq(-0.75).all()


def test_every_16_bit_scale_and_minimum_is_read_as_a_finite_layer() -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    halves = halves[halves.isfinite()]
    minima = halves.flip(0)
    heads = torch.stack([halves, minima], dim=-1).view(torch.uint8)
    blocks = torch.cat([heads, torch.full((len(halves), 16), 0x5A, dtype=torch.uint8)], dim=-1)
    found = unpack_blocks(blocks, Q4_1)
    assert found.zero is not None
    assert found.zero.isfinite().all()
    assert found.scale.isfinite().all()


def test_a_zero_that_a_minimum_cannot_hold_is_refused() -> None:
    scale = torch.full((1, 1), 1 + 2**-10).half()  # 11 significant bits
    tensor = QuantizedTensor(
        codes=torch.zeros(1, 32, dtype=torch.uint8), scale=scale, zero=torch.tensor([[3.0]]), grid=Q4_1.grid
    )
    assert lost_minima(scale, torch.tensor([[3.0]])) == 1
    assert lost_minima(scale, torch.tensor([[4.0]])) == 0
    with pytest.raises(FormatError, match=r"1 of 1 zeros .* with a symmetric scheme"):
        pack_blocks(tensor, Q4_1)


def test_a_scale_that_is_no_float16_number_is_refused() -> None:
    tensor = random_layer(grid_of(4, True, 32), 2, 64, 0, torch.float32)
    tensor.scale[0, 0] = 1 / 3
    with pytest.raises(FormatError, match=r"GGUF files hold scales in float16, and 1 of 4 scales"):
        pack_blocks(tensor, Q4_0)


@pytest.mark.parametrize(
    ("label", "columns", "suffix"),
    [
        ("w4a16-g32", 64, "_q4_0"),
        ("w4a16-g64", 128, "_q4_0"),
        ("w4a16", 96, "_q4_0"),
        ("w4a16-g32-asym", 64, "_q4_1"),
        ("w8a16-g32", 64, "_q8_0"),
        ("w8a16", 64, "_q8_0"),
        ("w5a16-g32", 64, "_q5_0"),
        ("w5a16-g64-asym", 64, "_q5_1"),
        ("iq4a16", 64, "_iq4_nl"),
        ("mxfp4a16", 64, "_mxfp4"),
    ],
)
def test_a_scheme_becomes_the_block_type_that_holds_it(label: str, columns: int, suffix: str) -> None:
    scheme = Scheme.parse(label)
    grid = scheme.weight
    tensor = random_layer(grid, 8, columns, 0)
    if tensor.zero is not None:
        tensor.scale.fill_(0.25)
    announced = GGUF.specs(layer_of(tensor), torch.float16)
    parts = GGUF.pack(tensor, scheme)
    assert {name: (part.shape, part.dtype) for name, part in parts.items()} == announced
    assert list(parts) == [suffix]
    assert parts[suffix].shape[1] == columns // 32 * BY_SUFFIX[suffix].nbytes
    found = GGUF.unpack(parts, scheme, columns)
    assert found.dequantize(torch.float32).equal(tensor.dequantize(torch.float32))
    if grid.group_size == 32:
        assert same(found, tensor)


@pytest.mark.parametrize(
    ("label", "columns", "changes", "reason"),
    [
        ("w3a16-g32", 64, {}, "q8_0.*q4_0.*q4_1"),
        ("w8a16-g32-asym", 64, {"scale_dtype": None}, "q8_0.*q4_0.*q4_1"),
        ("w4a16-g16", 64, {}, "64 inputs in groups of 16.*multiple"),
        ("w4a16", 48, {}, "48 inputs in groups of 48"),
        ("w4a16-g32-asym", 64, {}, "exact only by chance"),
        ("w4a8-dynamic-g32", 64, {}, "rounded activations"),
        ("w4a16-g32", 64, {"scale_dtype": torch.float32}, "its scales are float32"),
        ("w4a16-g32", 64, {"kind": "convolution"}, "not a convolution weight"),
        ("w4a16-g32", 64, {"multiplied": True}, "a factor for each input"),
    ],
)
def test_what_no_block_holds_is_refused_with_the_reason(
    label: str, columns: int, changes: dict[str, object], reason: str
) -> None:
    scheme = Scheme.parse(label)
    tensor = random_layer(scheme.weight, 8, columns, 0)
    refused = GGUF.refuses(layer_of(tensor, scheme=scheme, **changes))
    assert refused is not None
    assert re.search(reason, refused)
