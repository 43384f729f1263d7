"""Knockoffs: the moments they are made for, and that only the real half of a batch is seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from goldstick.errors import DataError
from goldstick.training import components
from goldstick.training import knockoffs as module
from goldstick.training.components import Gathered
from goldstick.training.knockoff_model import KnockoffModel
from goldstick.training.knockoffs import GaussianKnockoffs, ascending, correlation_with, derangement, equicorrelated


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


def smooth(count: int, size: int = 10, seed: int = 1) -> Tensor:
    """Images whose neighbouring pixels are alike: [count, 3, size, size]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, size // 2, size // 2, generator=generator)
    fine = 0.05 * torch.randn(count, 3, size, size, generator=generator)
    return nn.functional.interpolate(coarse, size=size, mode="bilinear") + fine


@pytest.mark.parametrize("samples", [64, 280])
def test_with_fewer_samples_than_features_knockoffs_are_no_copies(samples: int) -> None:
    real, others = smooth(samples), smooth(400, seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        knockoffs = GaussianKnockoffs.fit(real.split(100))
        assert correlation_with(real, knockoffs(real)) < 0.15
        assert correlation_with(others, knockoffs(others)) < 0.1
    assert knockoffs.basis is not None and knockoffs.basis.shape == (300, min(samples - 1, 256))


def test_components_of_few_samples_are_those_of_their_covariance() -> None:
    real = smooth(30, 4).flatten(1)
    gathered = Gathered.of(real.split(7))
    assert gathered.held and gathered.squares is None
    mean, vectors, variances = gathered.components(12)
    expected, directions = torch.linalg.eigh(torch.cov(real.double().T))
    torch.testing.assert_close(mean, real.double().mean(0))
    torch.testing.assert_close(variances, expected[-12:])
    torch.testing.assert_close((vectors * directions[:, -12:]).sum(0).abs(), torch.ones(12, dtype=torch.float64))
    found, covariance = Gathered.of([real]).covariance()
    torch.testing.assert_close(found, mean)
    torch.testing.assert_close(covariance, torch.cov(real.double().T))


def test_features_that_do_not_vary_stay_and_make_no_copies_of_the_others() -> None:
    real = correlated(4_000)
    real[:, 2], real[:, 5] = 0.1, 0.0
    varying = [0, 1, 3, 4, 6, 7]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = GaussianKnockoffs.fit(real.split(1_500), "equicorrelated")(real)
        alone = GaussianKnockoffs.fit([real[:, varying]], "equicorrelated")(real[:, varying])
    assert torch.equal(made[:, [2, 5]], real[:, [2, 5]])
    assert correlation_with(real, made) == pytest.approx(correlation_with(real[:, varying], alone), abs=0.02)
    many = smooth(600)
    many[:, :, :4] = 0.0  # a black border
    assert correlation_with(many, GaussianKnockoffs.fit([many])(many)) < 0.1


def test_features_that_depend_on_each_other_become_components() -> None:
    real = correlated(2_000)
    real[:, 7] = real[:, :7].sum(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = GaussianKnockoffs.fit([real])(real)
    assert correlation_with(real, made) < 0.1
    torch.testing.assert_close(made[:, 7], made[:, :7].sum(1), atol=1e-3, rtol=1e-4)


def test_knockoffs_of_large_images_fit_where_samples_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.randn(6, 3, 224, 224)
    knockoffs = GaussianKnockoffs.fit(real.split(2))
    assert knockoffs(real).shape == real.shape
    monkeypatch.setattr(components, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match=r"of 150,528 features would take .* smaller batches"):
        GaussianKnockoffs.fit([real])
    with pytest.raises(DataError, match="40 features would take"):  # 12,800 bytes of the covariance
        GaussianKnockoffs.fit([torch.randn(50, 40)])


def test_knockoffs_that_would_be_the_data_are_refused() -> None:
    with pytest.raises(DataError, match="All samples are equal"):
        GaussianKnockoffs.fit([torch.ones(9, 5)])
    almost = correlated(3_000)
    almost[:, 7] = almost[:, :7].sum(1) + 0.03 * torch.randn(3_000)
    with pytest.raises(DataError, match=r"would be the data: .* Give more samples"):
        GaussianKnockoffs.fit([almost], "equicorrelated")


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


class Regression(nn.Module):
    """The squared error of sums."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (x.sum(1) - labels).square().mean()}


def test_labels_that_are_numbers_stay_what_they_are() -> None:
    x, labels = torch.randn(5, 3), torch.randn(5)
    shown = KnockoffModel(Regression(), lambda real: real).train()
    assert float(shown(x=x, labels=labels)["loss"]) == pytest.approx(float(Regression()(x, labels)["loss"]), rel=1e-6)


def test_the_network_sees_both_halves_and_gives_the_real_one_with_its_statistics_frozen() -> None:
    model = Seeing()
    shown = KnockoffModel(model, lambda real: -real).train()
    x, before = torch.randn(5, 3), model.norm.running_mean
    output = shown(x, labels=torch.arange(5))
    assert torch.equal(model.seen[0], torch.cat([x, -x]))
    assert torch.equal(output["logits"], model.eval()(x)["logits"])
    assert output["labels"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(model.norm.running_mean, before)
    assert not model.norm.training
    assert torch.equal(shown.eval()(x)["logits"], output["logits"])
    assert shown.norm is model.norm
