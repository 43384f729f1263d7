"""Soft assignment: a weight as the mean of its levels under learned probabilities, and where to begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import in_groups
from goldstick.core.rounded_inputs import fake_quantize_per_token
from goldstick.core.straight_through import passing

#: Numbers of a layer's logits that are worked on together; bounds what the softmax takes beside the logits.
LOGITS_AT_ONCE = 1 << 22

#: The same where a softmax is taken over three levels of every step of a search: what stays in a processor's cache.
_THREE_AT_ONCE = 1 << 18

#: Logits at the start are −2·d², d the distance from a level in steps: a normal density of half a step around the
#: weight. Under it the mean of the levels is the weight itself, within 2.3 % of a step, so a network begins as it was.
_SHARPNESS = 2.0

#: Scales that are tried, as shares of the one that reaches the largest weight.
_SHARES = torch.linspace(0.05, 1.0, 39, dtype=torch.float64)
_REFINEMENTS = 4


def likeliest(logits: Tensor) -> Tensor:
    """The number of the level of the largest logit, the first of equals, int64 [out, in]; without gradient.

    What argmax gives, which takes tens of times as long over a first dimension of few levels.

    Args:
        logits: float [levels, out, in].
    """
    best, *others = logits.detach()
    place = torch.zeros(best.shape, dtype=torch.int16, device=best.device)
    for number, level in enumerate(others, start=1):
        place = torch.maximum(place, (level > best).short().mul_(number))  # numbers rise
        best = torch.maximum(best, level)
    return place.long()


def zero_of(grid: Grid) -> float:
    """Where 0 lies among the codes: in the middle between them for an asymmetric grid, so that no level is 0.

    (2^b − 1) / 2 for an asymmetric grid, whose levels are then α·linspace(−1, 1, 2^b) with α = s·(2^b − 1)/2, as in
    arXiv 2009.08695; 2^(b−1) for a symmetric one.
    """
    return float(grid.midpoint) if grid.symmetric else grid.code_max / 2


def fit_scale(weight: Tensor, grid: Grid) -> Tensor:
    """The step s of least squared error between a weight and its nearest levels (code − zero)·s.

    Tried over shares of the step that reaches the largest weight, then refined, codes held: s = ⟨w, u⟩ / ⟨u, u⟩.
    A row of zeros gets the smallest normal number where no level is zero, and 1 otherwise.

    Args:
        weight: float [out, in].
        grid: The grid, by channel or group.

    Returns:
        float32 [out, groups].
    """
    grouped = in_groups(weight.double(), grid)  # [out, groups, width]
    zero = zero_of(grid)
    largest = grouped.abs().amax(-1, keepdim=True)
    reach = largest / (grid.code_max - zero)
    best, least = reach.clone(), torch.full_like(reach, torch.inf)
    for share in _SHARES.to(weight.device):
        step = reach * share
        for _ in range(_REFINEMENTS):
            units = _nearest(grouped, step, zero, grid)
            error = (grouped - units * step).square().sum(-1, keepdim=True)
            better = error < least
            best, least = torch.where(better, step, best), torch.where(better, error, least)
            norm = units.square().sum(-1, keepdim=True)
            step = torch.where(norm > 0, (grouped * units).sum(-1, keepdim=True) / norm.clamp_min(1e-300), step)
    nothing = 1.0 if grid.symmetric else torch.finfo(torch.float32).tiny
    return torch.where(largest > 0, best, nothing).squeeze(-1).float()


def _nearest(grouped: Tensor, step: Tensor, zero: float, grid: Grid) -> Tensor:
    """The nearest codes less the zero."""
    codes = (grouped / step.clamp_min(1e-300) + zero).round().clamp(0, grid.code_max)
    return codes - zero


def warm_logits(weight: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """Logits under which a weight is what it was: −2·(w/s + zero − k)² for the code k.

    Weights beyond the outermost levels count as half a step beyond, from where they can still be moved.

    Args:
        weight: float [out, in].
        scale: float [out, groups].
        grid: The grid.

    Returns:
        float32 [levels, out, in].
    """
    position = in_groups(weight.float(), grid) / scale.unsqueeze(-1) + zero_of(grid)
    position = position.clamp(-0.5, grid.code_max + 0.5).flatten(-2)
    codes = torch.arange(grid.code_max + 1, device=weight.device).reshape(-1, 1, 1)
    return -_SHARPNESS * (position - codes).square()


class MeanCode(torch.autograd.Function):
    """The mean code under softmax(T·A): E = Σ_k k·P_k, with ∂E/∂A_k = T·P_k·(k − E).

    Where it is ``discrete``, the likeliest code instead, with the same gradient.

    The probabilities are not kept: both directions make them anew, rows of the matrix at a time.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, temperature: float, discrete: bool = False) -> Tensor:
        """[levels, out, in] → [out, in]."""
        context.save_for_backward(logits)
        context.temperature = temperature
        if discrete:
            return likeliest(logits).to(logits.dtype)
        return torch.cat([_mean(part, temperature)[1] for part in _rows(logits)])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the logits."""
        (logits,) = context.saved_tensors
        parts, start = [], 0
        for part in _rows(logits):
            probabilities, mean = _mean(part, context.temperature)
            gradient = gradients[0][start : start + part.shape[1]]
            start += part.shape[1]
            parts.append(context.temperature * probabilities * (_codes(part) - mean) * gradient)
        return torch.cat(parts, dim=1), None, None


class MeanOfThree(torch.autograd.Function):
    """The mean of a level and the two next to it under P = softmax(T·A): E = v + P₂·above − P₀·below.

    With ∂E/∂A = T·P·(d − Σ P·d), d = (−below, 0, above). Nothing but the logits is kept, as in :class:`MeanCode`.
    """

    @staticmethod
    def forward(
        context: Any, logits: Tensor, temperature: float, beside: Callable[[slice], tuple[Tensor, Tensor, Tensor]]
    ) -> Tensor:
        """[3, out, in], T and what gives v, above and below for some rows → [out, in]."""
        context.save_for_backward(logits)
        context.temperature, context.beside = temperature, beside
        mean = torch.empty_like(logits[0])
        for rows in _slices(logits):
            down, _, up = (temperature * logits[:, rows]).softmax(0)
            level, above, below = beside(rows)
            mean[rows] = level + up * above - down * below
        return mean

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the logits."""
        (logits,) = context.saved_tensors
        found = torch.empty_like(logits)
        for rows in _slices(logits):
            probabilities = (context.temperature * logits[:, rows]).softmax(0)
            _, above, below = context.beside(rows)
            gradient = gradients[0][rows]
            of_levels = torch.stack([-gradient * below, torch.zeros_like(gradient), gradient * above])
            mean = (probabilities * of_levels).sum(0)
            torch.mul(probabilities * (of_levels - mean), context.temperature, out=found[:, rows])
        return found, None, None


def _slices(logits: Tensor) -> Iterator[slice]:
    _, out_features, in_features = logits.shape
    rows = max(1, _THREE_AT_ONCE // (3 * in_features))
    return (slice(start, start + rows) for start in range(0, out_features, rows))


def _mean(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    probabilities = (temperature * logits).softmax(0)
    return probabilities, (probabilities * _codes(logits)).sum(0)


def _codes(logits: Tensor) -> Tensor:
    return torch.arange(len(logits), dtype=logits.dtype, device=logits.device).reshape(-1, 1, 1)


def _rows(logits: Tensor) -> tuple[Tensor, ...]:
    levels, _, in_features = logits.shape
    return torch.split(logits, max(1, LOGITS_AT_ONCE // (levels * in_features)), dim=1)


def with_rounded_inputs(x: Tensor, dtype: torch.dtype, bits: int) -> Tensor:
    """Inputs rounded with a scale for each token, as :func:`fake_quantize_per_token` does it; gradients pass.

    Args:
        x: float [..., features].
        dtype: In which the layer will compute this.
        bits: Of the codes.
    """
    with torch.no_grad():
        rounded = fake_quantize_per_token(x.to(dtype), bits).to(x.dtype)
    return passing(x, rounded)
