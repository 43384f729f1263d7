"""Knockoffs: the moments they are made for, and that only the real half of a batch is seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from goldstick.errors import DataError
from goldstick.training import knockoffs as module
from goldstick.training.knockoffs import GaussianKnockoffs, ascending, correlation_with, derangement, equicorrelated
from goldstick.training.real_half import RealHalf


def correlated(count: int, features: int = 8, seed: int = 0) -> Tensor:
    """Samples with a mean and a covariance of their own."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=generator) + 1.5 * torch.eye(features)
    return torch.randn(count, features, generator=generator) @ mixing + torch.arange(features)


def covariance(first: Tensor, second: Tensor) -> Tensor:
    first, second = first.double() - first.double().mean(0), second.double() - second.double().mean(0)
    return first.T @ second / len(first)


@pytest.mark.parametrize("kind", ["equicorrelated", "ascent"])
def test_the_knockoffs_covariance_is_the_data_s_and_that_between_them_falls_on_the_diagonal_only(kind: str) -> None:
    real = correlated(60_000)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = GaussianKnockoffs.fit(real.split(7_000), kind)(real)  # type: ignore[arg-type]
    true = covariance(real, real)
    tolerance = 0.03 * float(true.diagonal().max())
    torch.testing.assert_close(covariance(made, made), true, atol=tolerance, rtol=0)
    torch.testing.assert_close(made.mean(0), real.mean(0), atol=0.03, rtol=0)
    between = true - covariance(real, made)
    off = between - between.diagonal().diag()
    assert off.abs().max() < tolerance
    assert (between.diagonal() > -tolerance).all()
    assert correlation_with(real, made) < 0.999


def test_s_stays_below_twice_the_correlation_and_ascent_reaches_more_of_it() -> None:
    data = correlated(5_000)
    scale = covariance(data, data).diagonal().sqrt()
    correlation = covariance(data, data) / torch.outer(scale, scale)
    even, more = equicorrelated(correlation), ascending(correlation)
    for s in (even, more):
        assert torch.linalg.eigvalsh(2 * correlation - s.diag())[0] > -1e-9
        assert (s >= 0).all() and (s <= 1).all()
    assert more.sum() > 1.1 * even.sum()
    identity = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(ascending(identity), torch.ones(3, dtype=torch.float64), atol=1e-3, rtol=0)


def test_many_features_become_components_whose_knockoffs_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FEATURES", 4)
    real = correlated(40_000)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = GaussianKnockoffs.fit([real])(real)
    true = covariance(real, real)
    tolerance = 0.05 * float(true.diagonal().max())
    torch.testing.assert_close(covariance(made, made), true, atol=tolerance, rtol=0)
    assert correlation_with(real, made) < 0.05


def test_no_sample_is_its_own_knockoff() -> None:
    for count in (2, 3, 17):
        order = derangement(count)
        assert sorted(order.tolist()) == list(range(count))
        assert not (order == torch.arange(count)).any()
    with pytest.raises(DataError, match="one sample"):
        derangement(1)
    with pytest.raises(DataError, match="two samples"):
        GaussianKnockoffs.fit([torch.full((3, 2), torch.nan)])


class Seeing(nn.Module):
    """Remembers what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor | None]:
        self.seen.append(x)
        return {"logits": self.norm(x), "labels": labels}


def test_the_network_sees_both_halves_and_gives_the_real_one_with_its_statistics_frozen() -> None:
    model = Seeing()
    shown = RealHalf(model, lambda real: -real).train()
    x, before = torch.randn(5, 3), model.norm.running_mean
    output = shown(x, labels=torch.arange(5))
    assert torch.equal(model.seen[0], torch.cat([x, -x]))
    assert torch.equal(output["logits"], model.eval()(x)["logits"])
    assert output["labels"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(model.norm.running_mean, before)
    assert not model.norm.training
    assert torch.equal(shown.eval()(x)["logits"], output["logits"])
    assert shown.norm is model.norm
