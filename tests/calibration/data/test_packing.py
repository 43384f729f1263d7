"""Samples: exactly so many windows of exactly so many tokens, or so many padded rows; never fewer in silence."""

from __future__ import annotations

import pytest
import torch

from goldstick.calibration.data.packing import pack, pad_rows
from goldstick.calibration.data.samples import CalibrationData
from goldstick.errors import DataError


def packed(text: str, *, samples: int, seq_len: int, seed: int = 0, allow_short: bool = False) -> CalibrationData:
    return pack([encode(text)], dataset="mine", samples=samples, seq_len=seq_len, seed=seed, allow_short=allow_short)


def padded(*texts: str, samples: int, seq_len: int, seed: int = 0, allow_short: bool = False) -> CalibrationData:
    rows = [encode(text) for text in texts]
    return pad_rows(rows, dataset="mine", samples=samples, seq_len=seq_len, seed=seed, allow_short=allow_short)


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def rows_of(data: CalibrationData) -> list[str]:
    """The samples as text, found through the mask."""
    assert data.mask is not None
    return [
        "".join(chr(token) for token, real in zip(row, kept, strict=True) if real)
        for row, kept in zip(data.ids.tolist(), data.mask.tolist(), strict=True)
    ]


def test_windows_are_cut_from_the_stream_one_after_the_other() -> None:
    sequences = (encode(text) for text in ("abc", "", "defg", "hij"))
    data = pack(sequences, dataset="mine", samples=3, seq_len=3, seed=0)
    assert data.ids.tolist() == [encode("abc"), encode("def"), encode("ghi")]
    assert data.ids.dtype == torch.int64
    assert data.mask is None
    assert data.blank_rows == 1


def test_a_text_that_is_too_short_says_by_how_much() -> None:
    text = "x" * 24
    with pytest.raises(DataError, match=r"mine gives 6 windows of 4 tokens, and 7 are asked for: use samples: 6"):
        packed(text, samples=7, seq_len=4)
    with pytest.raises(
        DataError, match=r"gives 0 windows of 100 tokens, and 1 is asked for: use seq_len: 24 or more text$"
    ):
        packed(text, samples=1, seq_len=100)


def test_rows_that_are_too_few_say_by_how_much() -> None:
    with pytest.raises(
        DataError, match=r"mine gives 2 rows with tokens, and 3 .*: use samples: 2, more rows or allow_s"
    ):
        padded("a", "", "b", samples=3, seq_len=4)
    with pytest.raises(DataError, match=r"mine gives 0 rows with tokens, .*: use more rows$"):
        padded("", samples=1, seq_len=4)


def test_where_it_is_allowed_too_few_are_taken_with_a_warning() -> None:
    for data in (
        packed("abcdefgh", samples=5, seq_len=3, allow_short=True),
        padded("abc", "", "def", samples=5, seq_len=3, allow_short=True),
    ):
        assert data.ids.tolist() == [encode("abc"), encode("def")]
        (warning,) = data.warnings()
        assert "mine gives 2 of the 5 calibration samples" in warning
    assert packed("abcdefgh", samples=2, seq_len=3, allow_short=True).warnings() == ()


def test_nothing_at_all_is_an_error_even_where_too_few_are_allowed() -> None:
    with pytest.raises(DataError, match="gives 0 windows"):
        packed("ab", samples=1, seq_len=3, allow_short=True)
    with pytest.raises(DataError, match="gives 0 rows"):
        padded("", "", samples=1, seq_len=3, allow_short=True)


def test_the_seed_alone_decides_which_windows_are_drawn() -> None:
    text = "".join(chr(97 + number % 26) * 2 for number in range(400))
    first = packed(text, samples=5, seq_len=8, seed=1).ids
    torch.manual_seed(99)
    assert torch.equal(packed(text, samples=5, seq_len=8, seed=1).ids, first)
    assert not torch.equal(packed(text, samples=5, seq_len=8, seed=2).ids, first)


def test_the_seed_alone_decides_which_rows_are_drawn() -> None:
    texts = [chr(97 + number) * (1 + number % 3) for number in range(26)]
    first = rows_of(padded(*texts, samples=5, seq_len=8, seed=1))
    torch.manual_seed(99)
    assert rows_of(padded(*texts, samples=5, seq_len=8, seed=1)) == first
    assert first == sorted(first)
    assert rows_of(padded(*texts, samples=5, seq_len=8, seed=2)) != first


def test_a_window_never_comes_twice() -> None:
    text = "".join(chr(200 + number) for number in range(50))
    assert len(packed(text, samples=10, seq_len=5, seed=3).ids.flatten().unique()) == 50


def test_a_row_is_cut_at_its_end_or_padded_there() -> None:
    data = padded("abcdefg", "hi", "jklm", samples=3, seq_len=4)
    assert rows_of(data) == ["abcd", "hi", "jklm"]
    assert data.ids.shape == (3, 4)
    assert data.mask is not None
    assert data.mask[1].tolist() == [True, True, False, False]
    assert (data.cut_rows, data.blank_rows, data.available) == (1, 0, 3)


def test_padding_is_what_it_is_told_to_be() -> None:
    data = pad_rows([[1, 2], [3]], dataset="mine", samples=2, seq_len=3, seed=0, padding_id=9)
    assert data.ids.tolist() == [[1, 2, 9], [3, 9, 9]]
