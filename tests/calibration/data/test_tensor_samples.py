"""Samples that are tensors: which of them make a batch, their fingerprint, and what the report says."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.calibration.data.tensor_samples import VALUES_PER_BATCH, TensorSamples


def data(*samples: dict[str, Tensor], asked: int = 2) -> TensorSamples:
    return TensorSamples(samples=samples, dataset="mine.npz", available=9, asked=asked)


def test_samples_of_equal_shapes_go_together_and_nothing_is_padded() -> None:
    short, long = torch.zeros(1, 100, dtype=torch.int64), torch.zeros(1, 200, dtype=torch.int64)
    batches = data(*({"input_ids": ids} for ids in (short, long, short, short, long))).batches()
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(3, 100), (2, 200)]


def test_a_batch_holds_no_more_than_it_may_unless_one_sample_does() -> None:
    half = torch.zeros(1, VALUES_PER_BATCH // 2)
    assert [len(batch["x"]) for batch in data(*({"x": half} for _ in range(5))).batches()] == [2, 2, 1]
    large = torch.zeros(1, 2 * VALUES_PER_BATCH)
    assert [len(batch["x"]) for batch in data({"x": large}, {"x": large}).batches()] == [1, 1]
    ids = torch.zeros(1, 300, dtype=torch.int64)
    assert len(data({"input_ids": ids}, {"input_ids": ids}).batches()) == 2


def test_the_fingerprint_sees_values_names_shapes_dtypes_and_order() -> None:
    x = torch.arange(4.0).view(1, 4)
    prints = [
        data(*samples).fingerprint
        for samples in (
            [{"x": x}, {"x": x + 1}],
            [{"x": x + 1}, {"x": x}],
            [{"y": x}, {"y": x + 1}],
            [{"x": x.view(1, 2, 2)}, {"x": x + 1}],
            [{"x": x.double()}, {"x": x + 1}],
            [{"x": x}],
        )
    ]
    assert len(set(prints)) == len(prints)
    assert data({"x": x}, {"x": x + 1}).fingerprint == prints[0]
    assert data({"x": x.bfloat16()}).fingerprint != prints[-1]


def test_too_few_samples_that_were_allowed_are_warned_of() -> None:
    few = data({"x": torch.zeros(1, 3)})
    assert few.warnings() == (
        "mine.npz gives 1 of the 2 calibration samples that the recipe asks for; the result is calibrated on these",
    )
    assert few.audit()["arguments"] == "x 1×3"
    assert data({"x": torch.zeros(1, 3)}, asked=1).warnings() == ()


def test_an_epoch_of_training_draws_every_sample_once() -> None:
    samples = data(*({"x": torch.full((1, 2), float(number))} for number in range(5)))
    torch.manual_seed(0)
    first = samples.training_batches(2)(0)
    assert [len(batch["x"]) for batch in first] == [2, 2, 1]
    assert sorted(torch.cat([batch["x"] for batch in first])[:, 0].tolist()) == [0, 1, 2, 3, 4]
