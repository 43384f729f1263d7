"""Output metric: errors of a block's output weighed by the gradients there, against sums written out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from goldstick.calibration.held_out import Passes
from goldstick.calibration.output_metric import OutputMetric
from goldstick.core import output_groups
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask


def gradients(channels: int = 6, batches: int = 3) -> list[Tensor]:
    """Of channels that go together."""
    mixing = torch.randn(channels, channels)
    return [1e-3 * torch.randn(2, 40, channels) @ mixing for _ in range(batches)]


def metric_of(found: list[Tensor], masks: Sequence[Tensor | None] | None = None, share: float = 0.2) -> OutputMetric:
    metric = OutputMetric.of(found, [TokenMask(mask) for mask in masks or [None] * len(found)], share, Ranks())
    assert metric is not None
    return metric


def written_out(rows: Tensor, share: float) -> Tensor:
    outer = rows.double().T @ rows.double()
    return (1 - share) * outer / outer.diagonal().mean() + share * torch.eye(len(outer), dtype=torch.float64)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_an_error_counts_as_the_gradients_say(share: float) -> None:
    found, error = gradients(), torch.randn(2, 5, 6)
    squares = metric_of(found, share=share)(error).square().sum(-1)
    expected = written_out(torch.cat([one.flatten(0, 1) for one in found]), share)
    wide = error.double()
    torch.testing.assert_close(
        squares.double(), torch.einsum("btc,cd,btd->bt", wide, expected, wide), rtol=2e-3, atol=0
    )


def test_all_mixed_in_is_the_plain_square() -> None:
    error = torch.randn(2, 5, 6)
    torch.testing.assert_close(metric_of(gradients(), share=1.0)(error), error)


def test_padding_has_no_part() -> None:
    found = gradients(batches=1)
    mask = torch.ones(2, 40)
    mask[:, 30:] = 0
    loud = [found[0].clone()]
    loud[0][:, 30:] = 1e3
    first, second = metric_of(found, [mask]), metric_of(loud, [mask])
    for (_, one), (_, other) in zip(first.factors, second.factors, strict=True):
        assert torch.equal(one, other)


def test_channels_far_apart_are_looked_at_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_groups, "TOGETHER", 4)
    found, error = gradients(), torch.randn(3, 6)
    metric = metric_of(found)
    assert [part for part, _ in metric.factors] == [slice(0, 3), slice(3, 6)]
    expected = written_out(torch.cat([one.flatten(0, 1) for one in found]), 0.2)
    expected[:3, 3:] = expected[3:, :3] = 0
    wide = error.double()
    squares = (wide @ expected * wide).sum(-1)
    torch.testing.assert_close(metric(error).square().sum(-1).double(), squares, rtol=2e-3, atol=0)


def test_fewer_tokens_than_channels_are_a_metric_without_any_mixed_in() -> None:
    (gradient,) = gradients(batches=1)
    metric, error = metric_of([gradient[:1, :2]], share=0.0), torch.randn(3, 6)
    assert torch.isfinite(metric(error)).all() and metric(error).any()


def test_gradients_of_nothing_are_no_metric() -> None:
    assert OutputMetric.of([torch.zeros(2, 5, 6)], [TokenMask()], 0.2, Ranks()) is None


def test_passes_measure_by_it_what_the_mask_leaves() -> None:
    metric, output, target = metric_of(gradients()), torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    passes = Passes(runs=[lambda: output], targets=[target], masks=[TokenMask(mask)], metric=metric)
    torch.testing.assert_close(passes.errors(0), metric((output - target)[mask.bool()]).square())
    assert passes.part(slice(0, 1)).metric is metric
    plain = Passes(runs=[lambda: output], targets=[target], masks=[TokenMask(mask)])
    torch.testing.assert_close(plain.errors(0), (output - target)[mask.bool()].square())
