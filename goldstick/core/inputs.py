"""What an input group is given, in exact sums: the Hessian of a layer's output error, the size of each channel."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from goldstick.core.input_extent import InputExtent
from goldstick.core.powers_of_two import power_of_two
from goldstick.core.products import BITS, add_products, exponents_for, joined, mirror, whole_numbers
from goldstick.core.ranks import Ranks
from goldstick.errors import QuantizationError

SAMPLE = 512
"""Inputs that stand for all of them where a sum over all would cost more."""

_MOST_TOKENS = 1 << 36  # tokens · 2^(2·BITS) stays below 2^63
_COLUMN_BLOCK = 512
_SIZE_BITS = 18  # of a value whose size is summed; MOST_ROWS of them stay below 2^53


class InputObserver(InputExtent):
    """The one statistic of an input group: layers that read the same tensor, whatever stages act on them.

    H = (2/n) Σ x xᵀ over the n inputs (arXiv 2210.17323), with one bit pattern for one set of inputs; so have the
    means and the largest value of each channel.

    Each channel j has a power of two 2^eⱼ, the least that exceeds every |xⱼ| seen. An input is rounded to whole
    numbers qⱼ = round(xⱼ · 2^(BITS − eⱼ)), and Σ q qᵀ is summed as integers (:mod:`goldstick.core.products`).

    *Why no order, chunking or number of threads changes a bit.* (1) eⱼ comes from max|xⱼ|, and a maximum has no order.
    (2) q depends on x and e alone, and on no other input; multiplying by a power of two is exact. (3) |q| ≤ 2^13, so
    30 products fit 32 bits, and all of up to 2^36 tokens 64 bits: integer sums are exact, whatever their order. Where
    they are taken as float64 matrix products, 2^16 tokens at a time, every partial sum stays below 2^53 and is a whole
    number that float64 holds exactly, however it is associated or fused. (4) What follows, the rounding to float64,
    the powers of two and 2/n, is done once, per element.

    *One pass, bounded memory.* (2) needs every maximum before the first product. There are two ways to have it:

    - ``observe`` alone: the observer takes the maxima at once and keeps a reference to the batch, no copy, until
      ``release``. A sweep that lets all batches wait holds them anyway, and each Hessian is summed when it is needed.
    - ``observe_range`` for all batches, then ``observe`` for the same ones: nothing is kept but the sums and a sample.

    *Several ranks.* Each counts its own batches. :meth:`share_ranges` (where ranges come first) and :meth:`share` then
    make statistics sums over all ranks, by the above with the bits that one process finds. They are asked for by all
    ranks, or settled by all and asked for by one.

    Against a float64 sum rounding to 13 bits adds at most n/2^27 of a diagonal value, where one input alone is large.

    Args:
        in_features: Length of an input.

    Attributes:
        tokens: Inputs counted, n.
        dropped: Inputs left out because they hold NaN or infinity.
        memo: What an algorithm made of the Hessian, for the next layer that reads the same inputs.
        last_use: Whether no other layer reads these inputs: what is asked for once more need not be kept.
    """

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features)
        self.memo: dict[Any, Any] = {}
        self.last_use = False
        self._released = False
        self._held: list[tuple[Tensor, Tensor | None, int | None]] = []
        self._sums: Tensor | None = None
        self._device = torch.device("cpu")
        self._hessian: Tensor | None = None
        self._taken = False
        self._sum_abs = torch.zeros(in_features, dtype=torch.int64)
        self._sampled: list[Tensor] = []
        self._settled: dict[str, Tensor] = {}

    def share(self, ranks: Ranks) -> None:
        """Behind the last ``observe``: what is known becomes that of all ranks, all of which call this."""
        if ranks.alone:
            return
        self._device = ranks.device
        seen = ranks.gather((self.tokens, self.dropped))
        if self._ranges_given:
            self._sums = self._zeros() if self._sums is None else self._sums
            ranks.add(self._sums, upper=self._sums.ndim > 1)
            ranks.add(self._sum_abs)
            self._sampled = [rows for each in ranks.gather(self._sampled) for rows in each]
        else:
            self._share_ends(ranks)
            self._first = sum(tokens for tokens, _ in seen[: ranks.rank])
        self.tokens, self.dropped = sum(tokens for tokens, _ in seen), sum(dropped for _, dropped in seen)

    def settle(self, wanted: Collection[str], owner: int | None = None) -> None:
        """Find some statistics together with all other ranks, so that they can be asked for by one rank alone.

        Args:
            wanted: Names of the methods that give them.
            owner: The rank that will ask; any of them where ``None``.
        """
        if self._ranks.alone or not self.tokens or self.too_many_dropped:
            return
        if "hessian" in wanted and self._hessian is None:
            hessian = self._summed(owner)
            self._hessian = hessian if owner in (None, self._ranks.rank) else None
            self._sums = None
        elif "mean_square" in wanted:
            self._settled["mean_square"] = self.mean_square()
        if "sample" in wanted:
            self._settled["sample"] = self.sample(SAMPLE)

    def observe_range(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take note of the largest values of a batch that ``observe`` will see later.

        Args:
            x: float [..., in].
            mask: Which inputs count (no padding), [...].
        """
        if self.tokens or self.dropped:
            raise QuantizationError("The ranges of all batches come before the first batch itself.")
        self._ranges_given, self._device = True, x.device
        for rows, _ in self._chunks(x, mask):
            self._expected += len(rows)
            self._widen(rows)

    def observe(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            x: float [..., in]. Not to be changed in place before ``release``, unless its range was given.
            mask: Which inputs count (no padding), [...].

        Raises:
            QuantizationError: The shapes do not fit, or a value lies outside the range given before.
        """
        if self._released or self._taken or self._hessian is not None:
            raise QuantizationError("The Hessian was already asked for; later batches would need ranges of their own.")
        self._device = x.device
        if self._ranges_given and self._sums is None:
            self._sums = self._zeros()
        for rows, dropped in self._chunks(x, mask):
            first = self._first + self.tokens
            self.tokens += len(rows)
            self.dropped += dropped
            if self._sums is None:
                self._widen(rows)
            else:
                self._add(self._sums, rows)
                self._sum_abs += self._absolute(rows)
                self._sampled.append(_picked(rows, first, SAMPLE, self._expected))
        if self._sums is None:
            x = x.detach()
            self._held.append((x, mask, None if x.is_inference() else x._version))
        if self.tokens > _MOST_TOKENS:
            raise QuantizationError(f"{self.tokens} tokens are more than a Hessian is summed over ({_MOST_TOKENS}).")

    def hessian(self) -> Tensor:
        """H, float64 [in, in], symmetric to the bit; zero where nothing was observed. Not to be changed in place.

        It is kept for another layer that shares the inputs.

        Raises:
            QuantizationError: More than 1 % of the inputs were dropped, or the batches were let go or changed in place.
        """
        self.refuse_too_many_dropped()
        if self._hessian is None:
            self._hessian, self._sums = self._summed(), None
        return self._hessian

    def take_hessian(self) -> Tensor:
        """H for the caller alone, to do with as it likes: it is not kept.

        Who asks again gets a new sum where batches are held (many experts), and an error where ranges came first.

        Raises:
            QuantizationError: As for :meth:`hessian`.
        """
        hessian = self.hessian()
        self._hessian, self._taken = None, self._ranges_given
        return hessian

    def _summed(self, owner: int | None = None) -> Tensor:
        if self._taken:
            raise QuantizationError("The Hessian was taken away, and the batches are not held to sum it again.")
        sums = self._sums
        if sums is None:
            sums = self._zeros()
            for numbers in joined(self._whole(rows) for rows in self._rows()):
                add_products(sums, numbers)
            self._over_ranks(sums, owner, upper=True)
        mirror(sums)
        hessian = sums.view(torch.float64)  # in the memory of the sums: nothing else of this size is held
        down = self._down().to(sums.device)
        for start in range(0, self.in_features, _COLUMN_BLOCK):
            stop = start + _COLUMN_BLOCK
            part = sums[start:stop].double().mul_(down).mul_(down[start:stop].unsqueeze(-1))
            hessian[start:stop] = part.mul_(2).div_(max(self.tokens, 1))
        return hessian

    def mean_abs(self) -> Tensor:
        """(1/n) Σ|xⱼ|, float64 [in], summed like the Hessian: exactly, but over inputs rounded to 18 bits.

        Raises:
            QuantizationError: The batches were let go, or changed in place.
        """
        total = self._sum_abs.clone()
        if not self._ranges_given:
            for rows in self._rows():
                total += self._absolute(rows)
            self._over_ranks(total)
        return total.double().mul_(power_of_two(self._exponents() - _SIZE_BITS)).div_(max(self.tokens, 1))

    def mean_square(self) -> Tensor:
        """(1/n) Σ xⱼ², float64 [in]: half the diagonal of the Hessian to the bit, without summing the rest of it.

        Raises:
            QuantizationError: The batches were let go before the Hessian was asked for, or changed in place.
        """
        if self._hessian is not None:
            return self._hessian.diagonal().cpu() / 2
        if "mean_square" in self._settled:
            return self._settled["mean_square"]
        if self._sums is not None:
            total = (self._sums.diagonal() if self._sums.ndim > 1 else self._sums).cpu()
        else:
            total = torch.zeros(self.in_features, dtype=torch.int64)
            for rows in self._rows():
                total += self._whole(rows).long().square_().sum(0).to(total.device)
            self._over_ranks(total)
        down = self._down()
        return total.double().mul_(down).mul_(down).div_(max(self.tokens, 1))

    def sample(self, count: int) -> Tensor:
        """At most ``count`` inputs, evenly spaced over all of them in the order of observation; float32 [≤ count, in].

        Input ⌊i·n/k⌋ for i = 0 … k − 1, with k the lesser of ``count`` and n.

        Raises:
            QuantizationError: The batches were let go, or changed in place; or their ranges came first, and the count
                is not ``SAMPLE``, which alone is kept then.
        """
        if self._ranges_given and count != SAMPLE:
            raise QuantizationError(f"Of inputs that are not held, {SAMPLE} are kept, not {count}.")
        if count == SAMPLE and "sample" in self._settled:
            return self._settled["sample"]
        found, first = list(self._sampled), self._first
        if not self._ranges_given:
            for rows in self._rows():
                found.append(_picked(rows, first, count, self.tokens))
                first += len(rows)
            if self.tokens:
                found = [rows for each in self._ranks.gather(found) for rows in each]
        return torch.cat(found) if found else torch.zeros(0, self.in_features, dtype=torch.float32)

    def release(self) -> None:
        """Let go of the batches; what was summed and kept remains."""
        self._held = []
        self.memo.clear()
        self._released = True

    def _rows(self) -> Iterator[Tensor]:
        """The finite rows of all batches held, a few at a time."""
        if self.tokens and (self._released or self._ranges_given):
            why = "were let go" if self._released else "are not held where ranges are given first"
            raise QuantizationError(f"The batches {why}, and this statistic needs them again.")
        self.refuse_too_many_dropped()
        for x, mask, version in self._held:
            if version is not None and x._version != version:
                raise QuantizationError("A batch was changed in place between observe() and the statistic of it.")
            for rows, _ in self._chunks(x, mask):
                yield rows

    def _zeros(self) -> Tensor:
        return torch.zeros(self.in_features, self.in_features, dtype=torch.int64, device=self._device)

    def _add(self, sums: Tensor, rows: Tensor) -> None:
        add_products(sums, self._whole(rows))

    def _exponents(self) -> Tensor:
        return exponents_for(self._largest)

    def _down(self) -> Tensor:
        """2^(eⱼ − BITS), float64 [in]: what one step of a rounded input is worth."""
        return power_of_two(self._exponents() - BITS)

    def _whole(self, rows: Tensor) -> Tensor:
        """qⱼ of some rows, int16 [tokens, in]."""
        return whole_numbers(rows, self._exponents())

    def _absolute(self, rows: Tensor) -> Tensor:
        """Σ|round(xⱼ · 2^(18 − eⱼ))| of some rows, int64 [in]: at most 2^16 of up to 2^18, below 2^53."""
        up = power_of_two(_SIZE_BITS - self._exponents()).to(rows.device)
        return (rows.double() * up).round_().abs_().sum(0).to(device="cpu", dtype=torch.int64)


def _picked(rows: Tensor, first: int, count: int, total: int) -> Tensor:
    """Those of some rows, the first of which is number ``first``, that belong to a sample of ``count`` of ``total``."""
    wanted = min(count, total)
    places = torch.arange(wanted) * total // max(wanted, 1)
    here = places[(places >= first) & (places < first + len(rows))] - first
    return rows[here.to(rows.device)].float().cpu()
