"""Counts agree with their nouns."""

from __future__ import annotations

import pytest

from goldstick.core.counts import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("fault",), "0 faults"),
        (1, ("fault",), "1 fault"),
        (2, ("fault",), "2 faults"),
        (1200, ("quantized matrix", "quantized matrices"), "1,200 quantized matrices"),
        (1, ("quantized matrix", "quantized matrices"), "1 quantized matrix"),
    ],
)
def test_a_count_stands_before_its_noun_in_the_right_number(count: int, words: tuple[str, ...], said: str) -> None:
    assert counted(count, *words) == said
