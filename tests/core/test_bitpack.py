"""The packed row stream: round trips, a slow oracle, golden words, and compressed-tensors' own packer."""

from __future__ import annotations

import math
import random

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.core import rows
from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.errors import FormatError

every_width = pytest.mark.parametrize("bits", range(1, 9))


def random_codes(shape: tuple[int, ...], bits: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 2**bits, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pack_slowly(row: list[int], bits: int) -> list[int]:
    """One arbitrarily long integer, cut into signed 32-bit words."""
    stream = sum(code << (bits * k) for k, code in enumerate(row))
    words = [(stream >> (32 * w)) & 0xFFFFFFFF for w in range(math.ceil(len(row) * bits / 32))]
    return [word - (1 << 32) if word >= 1 << 31 else word for word in words]


@given(
    bits=st.integers(1, 8),
    lead=st.lists(st.integers(0, 4), max_size=3),
    n=st.integers(0, 75),
    seed=st.integers(0, 2**31),
)
def test_what_was_packed_comes_back_for_any_shape(bits: int, lead: list[int], n: int, seed: int) -> None:
    codes = random_codes((*lead, n), bits, seed)
    packed = pack_rows(codes, bits)
    assert packed.dtype == torch.int32
    assert packed.shape == (*lead, packed_width(n, bits))
    assert torch.equal(unpack_rows(packed, bits, n), codes)


@every_width
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 32, 33, 64, 107])
def test_every_bit_is_where_a_slow_packer_puts_it(bits: int, n: int) -> None:
    codes = random_codes((3, n), bits, seed=n)
    assert pack_rows(codes, bits).tolist() == [pack_slowly(row, bits) for row in codes.tolist()]


@every_width
def test_words_equal_those_of_compressed_tensors(bits: int) -> None:
    for columns in (1, 24, 32, 50, 128):
        codes = random_codes((6, columns), bits, seed=columns)
        signed = (codes.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)
        theirs = pack_to_int32(signed, bits)
        assert torch.equal(pack_rows(codes, bits), theirs)
        assert torch.equal(unpack_from_int32(pack_rows(codes, bits), bits, signed.shape), signed)


def test_golden_words() -> None:
    nibbles = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    assert pack_rows(nibbles, 4).tolist() == [[0x87654321 - (1 << 32), 0xF]]
    triples = torch.tensor([7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6], dtype=torch.uint8)  # 6 = 0b110 straddles bit 32
    assert pack_rows(triples, 3).tolist() == [0x80000007 - (1 << 32), 1]
    assert pack_rows(torch.tensor([1, 2, 3, 255], dtype=torch.uint8), 8).tolist() == [0xFF030201 - (1 << 32)]


@every_width
def test_rows_packed_in_several_steps_are_the_same(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes((11, 45), bits)
    packed = pack_rows(codes, bits)
    monkeypatch.setattr(rows, "CHUNK_ELEMENTS", 100)
    assert torch.equal(pack_rows(codes, bits), packed)
    assert torch.equal(unpack_rows(packed, bits, 45), codes)


def test_strided_tensors_are_packed_by_value() -> None:
    codes = random_codes((16, 24), 4)
    assert torch.equal(pack_rows(codes.T, 4), pack_rows(codes.T.contiguous(), 4))
    packed = pack_rows(codes, 4)
    strided = packed.T.contiguous().T
    assert torch.equal(unpack_rows(strided, 4, 24), codes)


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_of_one_word_are_unpacked_from_a_transposed_tensor(rows: int) -> None:
    # torch calls it contiguous, whatever the stride over its one column.
    codes = random_codes((rows, 8), 4)
    stored = pack_rows(codes, 4).T.contiguous()
    assert torch.equal(unpack_rows(stored.T.contiguous(), 4, 8), codes)
    assert torch.equal(unpack_rows(pack_rows(codes, 4).reshape(1, rows).clone().T, 4, 8), codes)


def test_meta_tensors_get_their_shapes() -> None:
    codes = torch.empty(2, 5, 33, dtype=torch.uint8, device="meta")
    packed = pack_rows(codes, 3)
    assert packed.is_meta and packed.shape == (2, 5, packed_width(33, 3))
    assert unpack_rows(packed, 3, 33).shape == (2, 5, 33)


def test_codes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match="16 does not fit into 4 bits"):
        pack_rows(torch.tensor([[3, 16]], dtype=torch.uint8), 4)
    with pytest.raises(FormatError, match="uint8"):
        pack_rows(torch.zeros(2, 2, dtype=torch.int8), 4)
    with pytest.raises(FormatError, match="1 to 8 bits"):
        packed_width(4, random.choice([0, 9]))
    with pytest.raises(FormatError, match="take 4 words"):
        unpack_rows(torch.zeros(2, 3, dtype=torch.int32), 4, 32)
    with pytest.raises(FormatError, match="int32"):
        unpack_rows(torch.zeros(2, 4, dtype=torch.int64), 4, 32)
