"""Mixtures: the published rules, spelled out for models of some depths."""

from __future__ import annotations

import pytest

from goldstick.core.mixture import MIXTURES, Place, Work
from goldstick.core.scheme import Scheme


def types(name: str, work: Work, count: int, **facts: int) -> list[str | None]:
    given = {"columns": 1024, **facts}
    return [MIXTURES[name].type_of(Place(work=work, index=index, count=count, **given)) for index in range(count)]


@pytest.mark.parametrize("name", MIXTURES)
def test_every_type_is_a_scheme_whose_blocks_fit(name: str) -> None:
    for columns in (256, 96, 100):
        for work in ("value", "key", "attention output", "down", "embedding", "head", "other"):
            for found in types(name, work, 9, columns=columns):  # type: ignore[arg-type]
                if found is None:
                    assert columns == 100
                else:
                    assert Scheme.parse(found).weight.divides(columns)


def test_q4_k_m_gives_more_bits_to_the_ends_and_to_every_third_between() -> None:
    more = types("q4_k_m", "down", 32)
    assert [index for index, kind in enumerate(more) if kind == "q6_k"] == [
        0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31,
    ]  # fmt: skip
    assert {kind for kind in more if kind != "q6_k"} == {"q4_k"}
    assert types("q4_k_m", "value", 32) == more
    assert set(types("q4_k_m", "attention output", 32)) == {"q4_k"}


def test_the_first_layers_have_types_of_their_own() -> None:
    assert types("q3_k_m", "value", 4) == ["q5_k", "q5_k", "q4_k", "q4_k"]
    assert types("q3_k_m", "down", 32) == ["q5_k", "q5_k", *["q4_k"] * 30]
    assert types("q4_k_s", "value", 6) == [*["q5_k"] * 4, "q4_k", "q4_k"]
    assert types("q4_k_s", "down", 16) == ["q5_k", "q5_k", *["q4_k"] * 14]
    assert types("q2_k_m", "other", 2) == ["q2_k", "q2_k"]


def test_values_that_many_heads_share_have_more_bits() -> None:
    assert types("q2_k_m", "value", 1, shared=4) == ["q4_k"]
    assert types("q2_k_m", "value", 1, shared=2) == ["q3_k"]
    assert types("iq4_xs_m", "value", 1, shared=8) == ["q5_k"]
    assert types("iq4_xs_m", "value", 1) == ["iq4_xs"]


def test_eight_experts_guard_attention() -> None:
    assert types("q4_k_m", "key", 1, experts=8) == ["q8_0"]
    assert types("q4_k_m", "value", 1, experts=8) == ["q8_0"]
    assert types("q4_k_m", "attention output", 1, experts=8) == ["q5_k"]
    assert types("q5_k_m", "attention output", 1, experts=8) == ["q5_k"]
    assert types("q4_k_m", "attention output", 1, experts=4) == ["q4_k"]


def test_the_head_has_six_bits_and_rows_that_no_superblock_divides_smaller_blocks() -> None:
    assert types("q2_k_m", "head", 1) == ["q6_k"]
    assert types("q2_k_m", "head", 1, columns=96) == ["q8_0"]
    assert types("q4_k_m", "other", 1, columns=96) == ["q5_0"]
    assert types("q5_k_m", "other", 1, columns=96) == ["q5_1"]
    assert types("q3_k_m", "other", 1, columns=96) == ["iq4_nl"]
    assert types("q4_k_m", "other", 1, columns=100) == [None]
