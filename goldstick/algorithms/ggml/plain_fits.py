"""The fits of :mod:`goldstick.algorithms.ggml.fits` in plain torch, which say what the compiled ones compute.

Groups lie side by side, [width, groups], so that one term of all of them is one vector operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from goldstick.core.element import Element

#: Groups whose largest magnitude is smaller count as zeros.
LEAST = 1e-15
_PASSES = 5


def fit_affine(
    groups: Tensor, weights: Tensor, code_max: int, shifts: Sequence[float], absolute: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, minimums [groups] and codes [groups, width] with the inverse steps shift / (max − min)."""
    x, weight = groups.T.contiguous(), weights.T.contiguous()
    low, high = x.amin(0).clamp(max=0), x.amax(0)
    flat = high <= low
    total, moment = _summed(weight), _summed(weight * x)
    inverse = _divided(code_max, high - low)
    best_scale, best_low = 1 / inverse, low
    best_codes = (inverse * (x - low)).round().clamp(0, code_max)
    best_error = _deviation(x, weight, best_codes, best_scale, best_low, absolute)
    for shift in shifts:
        inverse = _divided(shift, high - best_low)
        codes = (inverse * (x - best_low)).round().clamp(0, code_max)
        weighted = weight * codes
        sums, squares, products = _summed(weighted), _summed(weighted * codes), _summed(weighted * x)
        determinant = total * squares - sums * sums
        scale = (total * products - moment * sums) / determinant
        minimum = (squares * moment - sums * products) / determinant
        above = minimum > 0
        scale = torch.where(above, products / squares, scale)
        minimum = torch.where(above, 0.0, minimum)
        error = _deviation(x, weight, codes, scale, minimum, absolute)
        better = (determinant > 0) & (error < best_error)
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_low = torch.where(better, minimum, best_low)
        best_codes = torch.where(better, codes, best_codes)
    best_scale = torch.where(flat, 0.0, best_scale)
    best_codes = torch.where(flat, 0.0, best_codes)
    return best_scale, -torch.where(flat, low, best_low), _codes(best_codes)


def fit_symmetric(groups: Tensor, weights: Tensor, half: int, shifts: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Scales [groups] and codes [groups, width] with the inverse steps −shift / the largest."""
    x, weight = groups.T.contiguous(), weights.T.contiguous()
    largest, dead = _largest(x)

    def line(shift: float) -> tuple[Tensor, Tensor, Tensor]:
        codes = (_divided(-shift, largest) * x).round().clamp(-half, half - 1)
        return codes, _summed(weight * x * codes), _summed(weight * codes * codes)

    codes, products, squares = line(float(half))
    scale = torch.where(squares != 0, products / squares, 0.0)
    best = scale * products
    for shift in shifts:
        tried, products, squares = line(shift)
        better = (squares > 0) & (products * products > best * squares)
        scale = torch.where(better, products / squares, scale)
        best = torch.where(better, scale * products, best)
        codes = torch.where(better, tried, codes)
    return torch.where(dead, 0.0, scale), _codes(torch.where(dead, 0.0, codes + half))


def fit_by_changes(groups: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Scales [groups] and codes [groups, width]."""
    x = groups.T.contiguous()
    largest, dead = _largest(x)
    codes = (_divided(-half, largest) * x).round().clamp(-half, half - 1)
    codes, scale = _changed(x, x * x, codes, lambda ratio: ratio.clamp(-half, half - 1))
    return torch.where(dead, 0.0, scale), _codes(torch.where(dead, 0.0, codes + half))


def fit_positive(groups: Tensor, weights: Tensor, code_max: int, shifts: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Scales [groups] and codes [groups, width] with the inverse steps shift / max."""
    x, weight = groups.T.contiguous(), weights.T.contiguous()
    high = x.amax(0).clamp(min=0)
    dead = high < LEAST

    def error(codes: Tensor, scale: Tensor) -> Tensor:
        moved = x - scale * codes
        return _summed(weight * moved * moved)

    best_inverse = _divided(code_max, high)
    best = error((best_inverse * x).round(), 1 / best_inverse)
    for shift in shifts:
        inverse = _divided(shift, high)
        found = error((inverse * x).round().clamp(max=code_max), 1 / inverse)
        better = found < best
        best, best_inverse = torch.where(better, found, best), torch.where(better, inverse, best_inverse)
    codes = (best_inverse * x).round().clamp(max=code_max)
    codes, scale = _changed(x, weight, codes, lambda ratio: ratio.clamp(max=code_max), positive=True)
    return torch.where(dead, 0.0, scale), _codes(torch.where(dead, 0.0, codes))


def fit_table(groups: Tensor, weights: Tensor, element: Element, shifts: Sequence[float]) -> Tensor:
    """Scales [groups] with the inverse steps shift / the largest."""
    x, weight = groups.T.contiguous(), weights.T.contiguous()
    largest, dead = _largest(x)

    def line(inverse: Tensor) -> tuple[Tensor, Tensor]:
        values = element.table(x.device)[nearest_entry(inverse * x, element)]
        return _summed(weight * values * x), _summed(weight * values * values)

    products, squares = line(1 / (-largest / torch.full_like(largest, element.values[0])))
    scale = torch.where(squares > 0, products / squares, 0.0)
    best = scale * products
    for shift in shifts:
        products, squares = line(_divided(shift, largest))
        better = (squares > 0) & (products * products > best * squares)
        scale = torch.where(better, products / squares, scale)
        best = torch.where(better, scale * products, best)
    return torch.where(dead, 0.0, scale)


def nearest_entry(ratio: Tensor, element: Element) -> Tensor:
    """The places of the values nearest to ``ratio`` in an ascending table, int64; ties go to the larger value."""
    table = element.table(ratio.device)
    above = torch.bucketize(ratio, table, right=True).clamp(1, len(table) - 1)
    return above - (ratio - table[above - 1] < table[above] - ratio).long()


def counts_of(importance: Tensor, width: int) -> Tensor:
    """What columns count by group, float32 [groups, width]; all alike in groups where nothing does."""
    counts = importance.float().reshape(-1, width)
    return torch.where(counts.amax(-1, keepdim=True) > 0, counts, 1.0)


def sum_of(values: Tensor) -> Tensor:
    """Σ over the last dimension, one term after the other."""
    return _summed(values.movedim(-1, 0))


def sum_of_squares(values: Tensor) -> Tensor:
    """Σ of squares over the last dimension, one after the other."""
    return sum_of(values * values)


def root(values: Tensor) -> Tensor:
    """√, rounded correctly: torch's own may be off by a bit in float32, of float64 it has bits to spare."""
    return values.double().sqrt().float()


def _changed(
    x: Tensor, weight: Tensor, codes: Tensor, clamp: Callable[[Tensor], Tensor], positive: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes changed one by one where (Σ weight · x · q)² / Σ weight · q² grows, and the least-squares scale.

    Args:
        x: float32 [width, groups].
        weight: float32 [width, groups].
        codes: float32 [width, groups], signed.
        clamp: To the codes there are.
        positive: Whether all others together must have a positive square, too, before a code is looked at.
    """
    codes = codes.clone()
    products, squares = _summed(weight * x * codes), _summed(weight * codes * codes)
    for _ in range(_PASSES):
        for place in range(len(x)):
            value, counts, code = x[place], weight[place], codes[place]
            rest = products - counts * value * code
            rest_squares = squares - counts * code * code
            new = clamp((value * rest_squares / rest).round())
            allowed = (rest > 0) & (rest_squares > 0) if positive else rest > 0
            with_new = rest + counts * value * new
            new_squares = rest_squares + counts * new * new
            grows = with_new * with_new * squares > products * products * new_squares
            change = allowed & (new != code) & (new_squares > 0) & grows
            codes[place] = torch.where(change, new, code)
            products = torch.where(change, with_new, products)
            squares = torch.where(change, new_squares, squares)
    return codes, torch.where(squares > 0, products / squares, 0.0)


def _deviation(x: Tensor, weight: Tensor, codes: Tensor, scale: Tensor, low: Tensor, absolute: bool) -> Tensor:
    moved = scale * codes + low - x
    return _summed(weight * (moved.abs() if absolute else moved * moved))


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first value of largest magnitude, and whether all are zero or next to it."""
    place = x.abs().argmax(0, keepdim=True)
    largest = x.gather(0, place).squeeze(0)
    return largest, largest.abs() < LEAST


def _codes(lanes: Tensor) -> Tensor:
    return lanes.T.contiguous().to(torch.uint8)


def _summed(terms: Tensor) -> Tensor:
    """Σ over the first dimension, one term after the other."""
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


def _divided(number: float, by: Tensor) -> Tensor:
    """number / by; a plain number would be multiplied by a reciprocal."""
    return torch.full_like(by, number) / by
