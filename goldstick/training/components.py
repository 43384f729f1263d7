"""Samples gathered for their covariance: the matrix itself or, of fewer samples than features, its components alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.errors import DataError

#: Bytes that the samples that are held, or their covariance, may take.
MOST_BYTES = 1 << 32
#: Components of a smaller share of the largest one's variance are rounding, and none.
FLOOR = 1e-10
#: Features of which a Gram matrix is made at once.
_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Samples, in what is smaller: themselves while they are fewer than features, then their sums.

    Attributes:
        count: How many samples there are.
        origin: The first of them, from which the sums are taken so that features that do not vary give exact zeros;
            float64 [features].
        held: Samples [n, features] in their own dtype; empty where they are summed.
        total: Sum of the samples less the origin, float64 [features]; ``None`` where they are held.
        squares: Sum of their outer products, float64 [features, features].
    """

    count: int
    origin: Tensor
    held: tuple[Tensor, ...] = ()
    total: Tensor | None = None
    squares: Tensor | None = None

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> Gathered:
        """The samples [n, …] of all batches.

        Raises:
            DataError: There are fewer than two, some are not finite, or they take too much memory.
        """
        found: Gathered | None = None
        for batch in batches:
            flat = batch.detach().cpu().flatten(1)
            if len(flat):
                found = cls(count=0, origin=flat[0].double()) if found is None else found
                found = found._with(flat)
        if found is None or found.count < 2:
            raise DataError("Gaussian knockoffs need two samples or more, of finite numbers.")
        return found

    def _with(self, flat: Tensor) -> Gathered:
        if not bool(flat.isfinite().all()):
            raise DataError("Gaussian knockoffs need two samples or more, of finite numbers.")
        count, features = self.count + len(flat), len(self.origin)
        if count < features and self.squares is None:
            _check(count, features, count * features * flat.element_size())
            return Gathered(count=count, origin=self.origin, held=(*self.held, flat))
        summed = self.summed()
        assert summed.total is not None and summed.squares is not None
        shifted = flat.double() - self.origin
        return Gathered(
            count=count,
            origin=self.origin,
            total=summed.total + shifted.sum(0),
            squares=summed.squares.addmm_(shifted.T, shifted),
        )

    def summed(self) -> Gathered:
        """The same samples as sums."""
        if self.squares is not None:
            return self
        features = len(self.origin)
        _check(self.count, features, 8 * features**2)
        total, squares = self.origin.new_zeros(features), self.origin.new_zeros(features, features)
        for flat in self.held:
            shifted = flat.double() - self.origin
            total += shifted.sum(0)
            squares.addmm_(shifted.T, shifted)
        return Gathered(count=self.count, origin=self.origin, total=total, squares=squares)

    def covariance(self) -> tuple[Tensor, Tensor]:
        """Mean, float64 [features], and covariance, [features, features]; features that do not vary have zeros."""
        summed = self.summed()
        assert summed.total is not None and summed.squares is not None
        mean = summed.total / self.count
        return self.origin + mean, (summed.squares - self.count * torch.outer(mean, mean)) / (self.count - 1)

    def components(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """The principal components of largest variance, at most so many, and none without variance.

        With X the samples less their mean, XᵀX and the Gram matrix XXᵀ = UΛUᵀ have the same eigenvalues, and XᵀU/√Λ are
        the vectors of the former; the latter is taken where there are fewer samples than features.

        Returns:
            Mean, float64 [features]; vectors, [features, components]; variances, [components].

        Raises:
            DataError: All samples are equal.
        """
        if not self.held:
            mean, covariance = self.covariance()
            variances, vectors = torch.linalg.eigh(covariance)
            kept = _kept(variances, most)
            return mean, vectors[:, kept], variances[kept]
        samples = torch.cat(self.held)
        mean = self.origin + torch.cat(
            [(part.double() - place).mean(0) for part, place in _columns(samples, self.origin)]
        )
        gram = self.origin.new_zeros(self.count, self.count)
        for part, place in _columns(samples, mean):
            centred = part.double() - place
            gram.addmm_(centred, centred.T)
        squares, left = torch.linalg.eigh(gram)
        kept = _kept(squares, most)
        turned = left[:, kept] / squares[kept].sqrt()
        vectors = torch.cat([(part.double() - place).T @ turned for part, place in _columns(samples, mean)])
        return mean, vectors, squares[kept] / (self.count - 1)


def _columns(samples: Tensor, origin: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    return zip(torch.split(samples, _AT_ONCE, 1), torch.split(origin, _AT_ONCE), strict=True)


def _kept(variances: Tensor, most: int) -> Tensor:
    kept = (variances > FLOOR * variances[-1].clamp_min(0)).nonzero().squeeze(1)[-most:]
    if not len(kept):
        raise DataError("All samples are equal, so their knockoffs would be the data; use 'knockoffs: shuffle'.")
    return kept


def _check(samples: int, features: int, size: int) -> None:
    if size > MOST_BYTES:
        raise DataError(
            f"Gaussian knockoffs of {features:,} features would take {size / 1e9:.1f} GB for {samples:,} samples or "
            f"more, and {MOST_BYTES / 1e9:.1f} GB are the limit; give smaller batches (the first 50 are looked at) or "
            "smaller inputs, or use 'knockoffs: shuffle'."
        )
