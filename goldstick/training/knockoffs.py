"""Knockoffs: data that look like the real ones feature by feature, and say nothing of what is to be told from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from goldstick.errors import DataError
from goldstick.training.components import Gathered

#: Features above which Gaussian knockoffs are made of principal components.
MOST_FEATURES = 256
#: Below it a correlation has no inverse to speak of: features depend on each other, or samples are fewer.
_LEAST_EIGENVALUE = 1e-6
#: Mean s below which knockoffs are the data.
_LEAST_DIFFERENCE = 1e-3
_BARRIERS = (1e-1, 1e-2, 1e-3, 1e-4)
_SWEEPS = 3


def derangement(count: int) -> Tensor:
    """A random order of ``count`` samples in which none keeps its place, drawn from torch's generator.

    Raises:
        DataError: There is one sample only.
    """
    if count < 2:
        raise DataError("A batch of one sample has no knockoffs among the others; give batches of two or more.")
    order = torch.randperm(count)
    result = torch.empty_like(order)
    result[order] = order.roll(1)
    return result


def equicorrelated(correlation: Tensor) -> Tensor:
    """s_j = min(1, 2·λ_min) (arXiv 1610.02351, equation 3.2), [features]."""
    least = torch.linalg.eigvalsh(correlation)[0].clamp_min(0)
    return torch.full((len(correlation),), min(1.0, 2 * float(least)), dtype=torch.float64)


def ascending(correlation: Tensor) -> Tensor:
    """s that makes Σ_j s_j as large as coordinate ascent finds under 2Σ − diag(s) ⪰ 0, 0 ≤ s ≤ 1; no solver needed.

    A barrier μ·log det(2Σ − diag(s)) gives each coordinate its best value in closed form, the others held:
    s_j ← s_j + 1/((2Σ − diag(s))⁻¹)_jj − μ; the inverse follows by a change of rank one. μ falls to nothing.

    Args:
        correlation: Σ, float64 [features, features], positive definite.
    """
    s = equicorrelated(correlation) * 0.5
    for barrier in _BARRIERS:
        inverse = torch.linalg.inv(2 * correlation - s.diag())
        for _ in range(_SWEEPS):
            for j in range(len(s)):
                new = (s[j] + 1 / inverse[j, j] - barrier).clamp(0, 1)
                step = new - s[j]
                inverse += step * torch.outer(inverse[:, j], inverse[j]) / (1 - step * inverse[j, j])
                s[j] = new
    least = torch.linalg.eigvalsh(2 * correlation - s.diag())[0]
    return s if least >= 0 else s * (1 - 1e-6) + least.clamp_max(0)  # what rounding took


@dataclass(frozen=True, kw_only=True)
class GaussianKnockoffs:
    """Second-order knockoffs: x̃ ~ N(x − (x − μ)·Σ⁻¹·S, 2S − S·Σ⁻¹·S) (arXiv 1610.02351, section 3.1.1).

    x̃ has the mean μ and the covariance Σ of the data, and cov(x, x̃) = Σ − S. Where there are more than
    ``MOST_FEATURES`` features, or Σ has no inverse, these are the principal components that vary, which are not
    correlated: S = Σ, and the knockoffs are independent draws. What lies outside the components, and features that do
    not vary, are taken from another sample.

    Attributes:
        mean: μ, float64 [features].
        basis: The components, or the axes of the features that vary, float64 [features, components]; ``None`` where all
            features themselves are used.
        scale: Their standard deviations, [components].
        pull: Σ⁻¹·S of their correlation Σ, [components, components].
        spread: A root of 2S − S·Σ⁻¹·S, [components, components].
    """

    mean: Tensor
    basis: Tensor | None
    scale: Tensor
    pull: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, batches: Iterable[Tensor], kind: Literal["equicorrelated", "ascent"] = "ascent") -> GaussianKnockoffs:
        """Knockoffs of the samples [n, …] in ``batches``, whose mean and covariance are taken in float64.

        Raises:
            DataError: There are fewer than two samples, some are not finite, all are equal, or the knockoffs would be
                the data; or neither the samples nor their covariance fit into memory.
        """
        gathered = Gathered.of(batches)
        if len(gathered.origin) <= MOST_FEATURES:
            mean, covariance = gathered.covariance()
            varies = covariance.diagonal() > 0
            scale = covariance.diagonal()[varies].sqrt()
            correlation = covariance[varies][:, varies] / torch.outer(scale, scale)
            if len(scale) and torch.linalg.eigvalsh(correlation)[0] > _LEAST_EIGENVALUE:
                basis = None if bool(varies.all()) else torch.eye(len(mean), dtype=torch.float64)[:, varies]
                s = ascending(correlation) if kind == "ascent" else equicorrelated(correlation)
                return cls._of(mean, basis, scale, correlation, s)
        mean, basis, variances = gathered.components(MOST_FEATURES)
        none = torch.eye(len(variances), dtype=torch.float64)
        return cls._of(mean, basis, variances.sqrt(), none, none.diagonal())

    @classmethod
    def _of(
        cls, mean: Tensor, basis: Tensor | None, scale: Tensor, correlation: Tensor, s: Tensor
    ) -> GaussianKnockoffs:
        if float(s.mean()) < _LEAST_DIFFERENCE:
            raise DataError(
                "Gaussian knockoffs would be the data: features depend on each other, so that their mean correlation "
                f"with their knockoffs is {1 - float(s.mean()):.5f}. Give more samples, or use 'knockoffs: shuffle'."
            )
        pull = torch.linalg.solve(correlation, s.diag())
        values, vectors = torch.linalg.eigh(2 * s.diag() - s.unsqueeze(1) * pull)
        return cls(mean=mean, basis=basis, scale=scale, pull=pull, spread=vectors * values.clamp_min(0).sqrt())

    def __call__(self, real: Tensor) -> Tensor:
        """Knockoffs of samples [n, …], in their shape and dtype, drawn from torch's generator."""
        flat = real.detach().cpu().flatten(1).double() - self.mean
        inner = flat if self.basis is None else flat @ self.basis
        standard = inner / self.scale
        drawn = standard - standard @ self.pull + torch.randn_like(standard) @ self.spread.T
        made = drawn * self.scale
        if self.basis is not None:
            made = made @ self.basis.T + (flat - inner @ self.basis.T)[derangement(len(flat))]
        return (made + self.mean).reshape(real.shape).to(real)


def correlation_with(real: Tensor, knockoffs: Tensor) -> float:
    """Mean |correlation| of features with their knockoffs, over samples; features that do not vary do not count."""
    first, second = (values.detach().flatten(1).double() for values in (real, knockoffs))
    first, second = first - first.mean(0), second - second.mean(0)
    norms = first.norm(dim=0) * second.norm(dim=0)
    found = (first * second).sum(0)[norms > 0] / norms[norms > 0]
    return float(found.abs().mean()) if len(found) else 0.0
