"""How far the inputs of a layer have drifted from what the float model gives it, in exact sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.core.powers_of_two import power_of_two
from goldstick.core.products import BITS, add_products, exponents_for, whole_numbers
from goldstick.core.ranks import Ranks
from goldstick.core.rows import all_finite, row_chunks
from goldstick.errors import QuantizationError


class CrossCovarianceObserver(InputObserver):
    """An :class:`InputObserver` that is also shown what the float model gives to the same layer at the same tokens.

    Besides H it has D = (2/n) Σ (x_fp − x_q) x_qᵀ (arXiv 2504.02692), with x_q the inputs and x_fp those of the float
    model. D is as exact as H, and for the same reasons: x_q is rounded to whole numbers as for H, x_fp − x_q likewise
    with powers of two of its own, and a product of the two is summed as integers.

    Args:
        in_features: Length of an input.
        scale: What the inputs were divided by on the way here and those of the float model were not: positive float
            [in], from the stages that smooth. ``None`` for nothing.
    """

    def __init__(self, in_features: int, scale: Tensor | None = None) -> None:
        super().__init__(in_features)
        self._scale = None if scale is None else scale.double()
        self._largest_drift = torch.zeros(in_features, dtype=torch.float64)
        self._drift_sums: Tensor | None = None
        self._drift_is_whole = False
        self._cross: Tensor | None = None
        self._pairs: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def observe_range(self, x: Tensor, mask: Tensor | None = None, original: Tensor | None = None) -> None:
        """See :meth:`InputObserver.observe_range`; ``original`` as for :meth:`observe`."""
        super().observe_range(x, mask)
        for _, drift in self._drifts(x, mask, original):
            self._widen_drift(drift)

    def observe(self, x: Tensor, mask: Tensor | None = None, original: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            x: x_q, float [..., in]. Not to be changed in place before ``release``, unless its range was given.
            mask: Which inputs count (no padding), [...].
            original: x_fp, float [..., in], token for token; nor is it to be changed. ``None``, and tokens where it is
                not finite, count as no drift.

        Raises:
            QuantizationError: The shapes do not fit, or a value lies outside the range given before.
        """
        if self._cross is not None or (self._drift_sums is not None and not self._ranges_given):
            raise QuantizationError("The drift was already asked for; later batches would need ranges of their own.")
        super().observe(x, mask)
        for rows, drift in self._drifts(x, mask, original):
            if self._ranges_given:
                self._add_drift(rows, drift)
            else:
                self._widen_drift(drift)
        if original is not None and not self._ranges_given:
            self._pairs.append((x.detach(), original.detach(), mask))

    def cross_covariance(self) -> Tensor:
        """D, float64 [in, in]: row i is the drift of channel i, column j the input channel it goes along with.

        It is kept for who asks again. Not to be changed in place.

        Raises:
            QuantizationError: More than 1 % of the inputs were dropped, or the batches were let go.
        """
        self.refuse_too_many_dropped()
        if self._cross is None:
            sums = self._drift()
            cross = sums.view(torch.float64)  # in the memory of the sums: nothing else of this size is held
            down, along = power_of_two(self._drift_exponents() - BITS).to(sums.device), self._down().to(sums.device)
            for rows in row_chunks(sums):
                part = sums[rows].double().mul_(down[rows].unsqueeze(-1)).mul_(along)
                cross[rows] = part.mul_(2).div_(max(self.tokens, 1))
            self._cross, self._drift_sums = cross, None
        return self._cross

    def _drift(self) -> Tensor:
        """The sums over all ranks."""
        if self._drift_sums is None:
            if self._released and not self._ranges_given:
                raise QuantizationError("The batches were let go, and this statistic needs them again.")
            self._drift_sums = self._zeros()
            for x, original, mask in self._pairs:
                for rows, drift in self._drifts(x, mask, original):
                    self._add_drift(rows, drift)
        if not self._drift_is_whole:
            self._over_ranks(self._drift_sums)
            self._drift_is_whole = True
        return self._drift_sums

    def _share_ends(self, ranks: Ranks) -> None:
        super()._share_ends(ranks)
        ranks.extremes(torch.zeros_like(self._largest_drift), self._largest_drift)

    def settle(self, wanted: Collection[str], owner: int | None = None) -> None:
        """See :meth:`InputObserver.settle`."""
        super().settle(wanted, owner)
        if "cross_covariance" in wanted and not (self._ranks.alone or self.too_many_dropped or self._cross is not None):
            self._drift()

    def release(self) -> None:
        """Let go of the batches; what was summed and kept remains."""
        super().release()
        self._pairs = []

    def _drifts(self, x: Tensor, mask: Tensor | None, original: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """x_q and x_fp − x_q of the tokens that count, [tokens, in], the latter float64; a few tokens at a time."""
        if original is None:
            return
        if original.shape != x.shape:
            raise QuantizationError(
                f"Inputs {tuple(x.shape)} cannot be paired with {tuple(original.shape)} of the float model."
            )
        counts = mask
        if not (all_finite(x) and all_finite(original)):
            counts = torch.isfinite(x).all(-1) & torch.isfinite(original).all(-1)
            if mask is not None:
                counts &= mask.bool()
        for (rows, _), (floats, _) in zip(self._chunks(x, counts), self._chunks(original, counts), strict=True):
            wide = floats.double()
            if self._scale is not None:
                wide = wide / self._scale.to(wide.device)
            yield rows, wide - rows.double()

    def _widen_drift(self, drift: Tensor) -> None:
        if len(drift):
            self._largest_drift = torch.maximum(self._largest_drift, drift.abs().amax(0).to(self._largest_drift))

    def _add_drift(self, rows: Tensor, drift: Tensor) -> None:
        """Add the whole numbers of some drifts [tokens, in] times those of their inputs."""
        if self._drift_sums is None:
            self._drift_sums = self._zeros()
        add_products(self._drift_sums, whole_numbers(drift, self._drift_exponents()), self._whole(rows))

    def _drift_exponents(self) -> Tensor:
        return exponents_for(self._largest_drift)
