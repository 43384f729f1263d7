"""Rows of random tokens: how many, where they stand, what stays of the rows that they are copies of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.calibration.data.packing import pack, pad_rows
from goldstick.calibration.data.random_tokens import RandomTokens

ORDINARY = torch.arange(10, 500)


def drawing(share: float, seed: int = 0) -> RandomTokens:
    return RandomTokens(share=share, ordinary=ORDINARY, seed=seed)


def text(rows: int, of: int = 1, tokens: int = 6) -> list[dict[str, Tensor]]:
    """Batches of ``of`` rows whose tokens say which row they are of; the first token is special."""
    ids = torch.arange(1000, 1000 + rows)[:, None].repeat(1, tokens)
    ids[:, 0] = 1
    return [{"input_ids": part} for part in ids.split(of)]


@pytest.mark.parametrize(
    ("rows", "share", "count"), [(8, 0.25, 2), (128, 0.25, 32), (128, 0.0625, 8), (3, 0.1, 0), (5, 0.1, 1), (4, 1.0, 4)]
)
def test_there_are_so_many_rows_further_among_those_of_the_text(rows: int, share: float, count: int) -> None:
    ordinary = torch.cat([ORDINARY, torch.arange(1000, 1000 + rows)])
    batches = text(rows)
    found = replace(drawing(share), ordinary=ordinary).beside(batches)
    assert len(found) == rows + count
    given = {id(batch["input_ids"]) for batch in batches}
    places = [place for place, batch in enumerate(found) if id(batch["input_ids"]) not in given]
    assert len(places) == count
    assert not count or places[-1] < len(found) - 1  # what is held out at the end is of the text
    gaps = torch.tensor([0, *places, len(found)]).diff()
    assert not count or int(gaps.max()) <= rows / count + 2


def test_ordinary_tokens_are_replaced_and_special_ones_stay() -> None:
    rows = [{"input_ids": torch.tensor([[1, 20, 20, 2, 20, 30]])}] * 4
    found = [batch["input_ids"] for batch in drawing(1.0).beside(rows)]
    random = torch.cat(found[::2])
    assert random[:, [0, 3]].tolist() == [[1, 2]] * 4
    others = random[:, [1, 2, 4, 5]]
    assert bool(((others >= 10) & (others < 500)).all())
    assert others.unique().numel() > 12  # 16 draws out of 490
    assert all(bool((one == rows[0]["input_ids"]).all()) for one in found[1::2])


def test_every_ordinary_token_is_as_likely() -> None:
    rows = [{"input_ids": torch.full((64, 512), 20)}]
    few = RandomTokens(share=1.0, ordinary=torch.tensor([20, 21, 22, 23]), seed=3)
    drawn = torch.cat([batch["input_ids"] for batch in few.beside(rows)[:1]])
    counts = torch.bincount(drawn.flatten())[20:]
    assert counts.sum() == 64 * 512
    assert bool(((counts - 64 * 128).abs() < 5 * 78).all())  # five standard deviations


def test_several_rows_of_a_batch_make_one_batch() -> None:
    batches = text(8, of=4)
    ordinary = torch.cat([ORDINARY, torch.arange(1000, 1008)])
    found = replace(drawing(0.5), ordinary=ordinary).beside(batches)
    assert [len(batch["input_ids"]) for batch in found] == [2, 4, 2, 4]
    assert torch.equal(found[1]["input_ids"], batches[0]["input_ids"])


def test_padding_stays_and_masks_come_along() -> None:
    rows = [[20] * 5, [20] * 3, [20] * 5, [20] * 2]
    data = pad_rows(rows, dataset="mine", samples=4, seq_len=6, seed=0, padding_id=25)
    found = replace(data, random=drawing(1.0)).batches()
    assert sum(len(batch["input_ids"]) for batch in found) == 8
    for batch in found:
        assert bool((batch["input_ids"][batch["attention_mask"] == 0] == 25).all())
    assert sum(int(batch["attention_mask"].sum()) for batch in found) == 2 * 15


@pytest.mark.parametrize(
    "batch",
    [
        {"pixel_values": torch.zeros(2, 3, 4, 4)},
        {"input_ids": torch.full((2, 4), 20), "pixel_values": torch.zeros(2, 3, 4, 4)},
        {"input_ids": torch.full((4,), 20)},
        {"input_ids": torch.full((2, 4), 20), "attention_mask": torch.ones(2, 2, 4, 4)},
        {"input_ids": [[20, 20]]},
    ],
)
def test_what_is_not_text_alone_stays_by_itself(batch: dict[str, Any]) -> None:
    found = drawing(1.0).beside([batch, batch])
    assert len(found) == 2
    assert all(one[name] is batch[name] for one in found for name in batch)


def test_none_are_drawn_where_no_token_is_known() -> None:
    assert len(RandomTokens(share=1.0, ordinary=ORDINARY[:0], seed=0).beside(text(4))) == 4


def test_a_seed_decides_and_fingerprints_tell_draws_apart() -> None:
    data = pack([[20, 30] * 50], dataset="mine", samples=8, seq_len=10, seed=0)

    def of(share: float, seed: int) -> tuple[str, list[list[int]]]:
        drawn = replace(data, random=drawing(share, seed))
        return drawn.fingerprint, torch.cat([batch["input_ids"] for batch in drawn.batches()]).tolist()

    assert of(0.5, 0) == of(0.5, 0)
    for first, second in (of(0.5, 0), of(0.5, 1)), (of(0.5, 0), of(0.25, 0)):
        assert first[0] != second[0]
        assert first[1] != second[1]
    assert data.fingerprint not in (of(0.5, 0)[0], of(0.0, 0)[0])


def test_the_audit_counts_them_apart_from_the_text() -> None:
    data = pack([[20, 30] * 50], dataset="mine", samples=8, seq_len=10, seed=0)
    audit = replace(data, random=drawing(0.25)).audit()
    assert (audit["samples"], audit["random_samples"], audit["tokens"], audit["distinct_tokens"]) == (8, 2, 80, 2)
    assert "random_samples" not in data.audit()
    assert replace(data, random=drawing(0.25)).warnings() == ()
