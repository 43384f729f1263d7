"""Calibration data as the sweep and the report see them: batches, audit, fingerprint."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from goldstick.calibration.data.packing import pack, pad_rows
from goldstick.calibration.data.samples import TOKENS_PER_BATCH, CalibrationData, count_batches


def of(ids: Tensor) -> CalibrationData:
    return CalibrationData(ids=ids, dataset="mine", available=len(ids), asked=len(ids))


def of_lengths(lengths: list[int], seq_len: int) -> CalibrationData:
    """Rows of distinct tokens from 1 on, padded with 0."""
    ends = torch.tensor(lengths).cumsum(0).tolist()
    rows = [list(range(1 + end - length, 1 + end)) for end, length in zip(ends, lengths, strict=True)]
    return pad_rows(rows, dataset="mine", samples=len(rows), seq_len=seq_len, seed=0)


@pytest.mark.parametrize(("samples", "seq_len"), [(7, 16), (3, TOKENS_PER_BATCH), (2, 2 * TOKENS_PER_BATCH)])
def test_batches_hold_every_token_once_and_no_more_than_fit(samples: int, seq_len: int) -> None:
    ids = torch.arange(samples * seq_len).view(samples, seq_len)
    batches = of(ids).batches()
    assert torch.equal(torch.cat([batch["input_ids"] for batch in batches]), ids)
    assert all(set(batch) == {"input_ids"} for batch in batches)
    assert all(batch["input_ids"].numel() <= max(TOKENS_PER_BATCH, seq_len) for batch in batches)


def test_padded_batches_hold_every_token_once_behind_their_masks() -> None:
    lengths = [700, 3, 1500, 2048, 699, 5, 1, 1499, 12] * 3
    batches = of_lengths(lengths, 2048).batches()
    seen = [batch["input_ids"][batch["attention_mask"] == 1] for batch in batches]
    assert torch.cat(seen).sort().values.tolist() == list(range(1, 1 + sum(lengths)))
    for batch in batches:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert mask.dtype == torch.int64
        assert ids.shape == mask.shape
        assert ids.numel() <= TOKENS_PER_BATCH or len(ids) == 1
        assert torch.equal(mask, (ids != 0).long())
        assert (mask.diff(dim=1) <= 0).all(), "padding is to the right"
        assert mask[0].all(), "no column is padding alone"


def test_rows_of_similar_length_go_together() -> None:
    batches = of_lengths([250, 10, 250, 10, 250, 10], 1024).batches()
    assert [batch["attention_mask"].shape for batch in batches] == [(2, 250), (2, 250), (2, 10)]
    assert [int(batch["attention_mask"].sum()) for batch in batches] == [500, 260, 20]


def test_the_audit_counts_what_was_used_and_what_there_was() -> None:
    sequence = [5, 6, 7, 5, 6, 7, 5, 6, 0, 5, 6, 7, 5, 6]
    data = pack([sequence, []], dataset="mine", samples=4, seq_len=3, seed=0, unknown_id=0)
    audit = data.audit()
    assert audit == {
        "dataset": "mine",
        "samples": 4,
        "seq_len": 3,
        "tokens": 12,
        "windows_available": 4,
        "distinct_tokens": 4,
        "unknown_tokens": 1,
        "unknown_rate": 1 / 12,
        "blank_rows": 1,
        "fingerprint": data.fingerprint,
    }


def test_padding_is_in_no_count() -> None:
    rows = [[1, 0, 2], [], [3], [4, 4, 4, 4, 4, 4]]
    audit = pad_rows(rows, dataset="mine", samples=3, seq_len=5, seed=0, unknown_id=0).audit()
    assert (audit["tokens"], audit["distinct_tokens"]) == (9, 5)
    assert (audit["unknown_tokens"], audit["unknown_rate"]) == (1, 1 / 9)
    assert (audit["blank_rows"], audit["cut_rows"], audit["windows_available"]) == (1, 1, 3)


def test_a_tokenizer_that_knows_everything_has_no_unknown_tokens() -> None:
    audit = of(torch.zeros(2, 3, dtype=torch.int64)).audit()
    assert (audit["unknown_tokens"], audit["unknown_rate"]) == (0, 0.0)


def test_the_fingerprint_is_of_the_tokens_and_of_where_samples_end() -> None:
    ids = torch.arange(12).view(3, 4)
    first = of(ids).fingerprint
    assert len(first) == 64
    assert of(ids.clone()).fingerprint == first
    assert of(ids.flip(0)).fingerprint != first
    assert of(ids.view(4, 3)).fingerprint != first
    changed = ids.clone()
    changed[2, 3] += 1
    assert of(changed).fingerprint != first


def test_the_fingerprint_does_not_see_what_stands_behind_the_mask() -> None:
    def padded(lengths: list[int], padding_id: int) -> str:
        rows = [[7] * length for length in lengths]
        return pad_rows(rows, dataset="mine", samples=2, seq_len=4, seed=0, padding_id=padding_id).fingerprint

    assert padded([2, 3], 0) == padded([2, 3], 1)
    assert padded([2, 3], 0) != padded([3, 2], 0)


def test_batches_of_the_callers_own_are_counted_as_far_as_they_can_be() -> None:
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    assert count_batches([]) == {}
    assert count_batches([{"input_ids": ids}, {"input_ids": ids[:1]}]) == {"batches": 2, "samples": 3, "tokens": 15}
    masked = {"input_ids": ids, "attention_mask": mask}
    assert count_batches([masked]) == {"batches": 1, "samples": 2, "tokens": 7}
    wide = {"input_ids": ids, "attention_mask": torch.ones(2, 1, 5, 5)}
    assert count_batches([wide]) == {"batches": 1, "samples": 2, "tokens": 10}
    pictures = [{"pixel_values": torch.ones(4, 3, 8, 8)}]
    assert count_batches(pictures) == {"batches": 1, "samples": 4}
    assert count_batches([{"use_cache": False}]) == {"batches": 1}
