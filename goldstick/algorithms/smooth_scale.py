"""Smoothing: what a per-channel scale does to the output error of an input group, and which of several to keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from goldstick.algorithms.base import Member, SmoothScale
from goldstick.algorithms.clipping import RATIOS
from goldstick.algorithms.judged_rows import JudgedRows, judged_rows
from goldstick.algorithms.ranges import (
    FindRange,
    Range,
    ScaleDtype,
    quantize_with_ranges,
    quantize_with_search,
    shrunken,
)
from goldstick.core.float_inputs import fake_quantize_float
from goldstick.core.grid import Grid
from goldstick.core.input_range import input_range
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import in_groups
from goldstick.core.rows import row_chunks
from goldstick.core.scheme import Scheme

_BOUND = 1e4
_DIGITS = 10

Ranges = Literal["minmax", "clip"]

#: What a scale was made from, for the notes, and the scale, float32 [in].
Candidate = tuple[Mapping[str, float | str], Tensor]


class SmoothLoss:
    """The output error of an input group whose inputs are divided by s and whose weights are multiplied by it.

    With Q the rounding of each member's own scheme, summed over the members and averaged over the inputs x:

    - float activations: ‖(Q(W·diag(s))·diag(1/s) − W)·x‖². Of at most 512 channels this is tr(Δ·E[x xᵀ]·Δᵀ), exact over
      all inputs; of more, the mean over 512 inputs spaced evenly over all, which is then cheaper.
    - 8-bit activations: ‖Q(W·diag(s))·Qₐ(x/s) − W·x‖² over those inputs, each token rounded by its own largest value,
      or, where the range of inputs is static, by that of all inputs.

    Where members weight their inputs (:class:`OutputGroups`), the errors are those of each part of their outputs, over
    x·√a: a sum of tr(Δₖ Hₖ Δₖᵀ), in one unit. Where one cannot, none does.

    W·diag(s) is rounded to the dtype of W first, in which it will be stored.

    Args:
        members: The layers that read the inputs.
        observer: The inputs.
        ranges: What weights are rounded with: the ``minmax`` of their values, or (``clip``) for each group the range
            shrunken to 55 % at most for which Σⱼ E[(xⱼ/sⱼ)²]·(ŵⱼ − wⱼ)² is least, which is near to what AWQ's clipping
            will give; for a member that is compensated the ``mse`` range, which is GPTQ's.

    Attributes:
        weighted: Whether the members weight their inputs.

    Raises:
        QuantizationError: More than 1 % of the inputs hold NaN or infinity.
    """

    def __init__(self, members: Sequence[Member], observer: InputObserver, ranges: Ranges = "minmax") -> None:
        self._ranges = ranges
        self._lowest, self._highest = observer.lowest().cpu(), observer.highest().cpu()
        self._judged = judged_rows(members, observer)
        self.weighted = self._judged[0].roots is not None

    def __call__(self, scale: Tensor | None) -> float:
        """The error with s = ``scale``, float [in], or without one; infinite where a scaled weight overflows."""
        total = 0.0
        for judged in self._judged:
            scale = None if scale is None else scale.to(judged.square.device)
            for member in judged.members:
                error = self._of_weights if member.scheme.activation is None else self._of_all
                total += judged.size * error(judged, member, scale)
        return total if math.isfinite(total) else math.inf

    def _of_weights(self, judged: JudgedRows, member: Member, scale: Tensor | None) -> float:
        total = 0.0
        rows = judged.sample.double() if judged.roots is None else judged.sample * judged.roots
        for part in row_chunks(member.weight, copies=4):
            weight = member.weight[part]
            rounded = self._rounded(weight, member, scale, judged.square)
            if rounded is None:
                return math.inf
            delta = (rounded if scale is None else rounded / scale.double()) - weight.double()
            if member.compensated and judged.left is not None:
                total += float((delta.square_() @ judged.left).sum())
            elif judged.moment is not None:
                total += float((delta @ judged.moment * delta).sum())
            else:
                total += float((delta @ rows.T).square_().sum()) / max(len(rows), 1)
        return total

    def _of_all(self, judged: JudgedRows, member: Member, scale: Tensor | None) -> float:
        total = 0.0
        inputs = judged.sample
        divided = inputs if scale is None else inputs / scale
        tokens = self._rounded_inputs(member.scheme, divided, scale).double()
        for part in row_chunks(member.weight, copies=4):
            weight = member.weight[part]
            rounded = self._rounded(weight, member, scale, judged.square)
            if rounded is None:
                return math.inf
            error = tokens @ rounded.T - inputs.double() @ weight.double().T  # [k, out]
            error = error if judged.roots is None else error * judged.roots
            total += float(error.square_().sum()) / len(tokens)
        return total

    def _rounded_inputs(self, scheme: Scheme, inputs: Tensor, scale: Tensor | None) -> Tensor:
        """Qₐ(x/s), [k, in]."""
        grid = scheme.activation
        if not len(inputs) or grid is None:
            return inputs
        if not scheme.static_input:
            if grid.float_element is not None:
                return fake_quantize_float(inputs, grid)
            return quantize_with_search(inputs, Grid(bits=grid.bits), "minmax").dequantize()
        divisor = 1.0 if scale is None else scale.double().cpu()
        low, high = float((self._lowest / divisor).min()), float((self._highest / divisor).max())
        step, zero = input_range(low, high, grid)
        if grid.float_element is not None:
            return fake_quantize_float(inputs, grid, step.reshape(1))
        shift = 0.0 if zero is None else float(zero)
        return ((inputs / float(step) + shift).round().clamp(-128, 127) - shift) * float(step)

    def _rounded(self, weight: Tensor, member: Member, scale: Tensor | None, square: Tensor) -> Tensor | None:
        """Q(W·diag(s)) of some rows, float64, or ``None`` where that overflows the dtype of W."""
        scaled = weight if scale is None else (weight.float() * scale).to(weight.dtype)
        if scale is not None and not torch.isfinite(scaled).all():
            return None
        grid = member.scheme.weight
        if self._ranges == "clip" and not member.compensated and not grid.rows_share_scales:
            tensor = quantize_with_ranges(scaled, grid, _clipping(grid, scale, square))
        else:
            tensor = quantize_with_search(scaled, grid, "minmax" if self._ranges == "minmax" else "mse")
        return tensor.dequantize().double()


def _clipping(grid: Grid, scale: Tensor | None, square: Tensor) -> FindRange:
    """What finds the ranges of scaled weights that cost their inputs, E[xⱼ²] [in], least."""
    square = square if scale is None else square / scale.double().square()  # E[(xⱼ/sⱼ)²], [in]
    shares = in_groups((square / square.max().clamp(min=torch.finfo(torch.float64).tiny)).float(), grid)

    def search(grouped: Tensor, grid: Grid, kept: ScaleDtype) -> Range:
        return shrunken(grouped, grid, kept, RATIOS, lambda delta: delta.square_().mul_(shares).sum(-1))

    return search


def bounded(scale: Tensor, live: Tensor) -> Tensor:
    """The scale in float32 within [1e-4, 1e4], so that 16-bit weights can hold it; 1 where it is NaN or infinite, or
    where ``live`` (bool [in]) is false."""
    usable = live & torch.isfinite(scale)
    return torch.where(usable, scale.clamp(1 / _BOUND, _BOUND), torch.ones_like(scale)).float()


def least_loss(loss: SmoothLoss, candidates: Iterable[Candidate]) -> SmoothScale:
    """The candidate of least loss, or no scale where none is below that of the group as it is.

    Losses are compared by their first ten digits, and the first of equals wins. They are sums in float64, whose
    last digits depend on how many threads share a product: what differs by less is no reason to prefer one.

    Args:
        loss: The loss of a scale.
        candidates: What to try.
    """
    plain = loss(None)
    best, notes, scale = math.inf, dict[str, float | str](), None
    for made_from, candidate in candidates:
        found = loss(candidate)
        if scale is None or _short(found) < _short(best):
            best, notes, scale = found, dict(made_from), candidate
    if scale is None or not _short(best) < _short(plain):
        rival = f"; the best of what was tried gives {best:.6g}" if math.isfinite(best) else ""
        reason = f"no scale lowers the simulated output error {plain:.6g}{rival}"
        return SmoothScale(scale=None, notes={**notes, "unbalanced": reason})
    return SmoothScale(scale=scale, notes={**notes, "balanced_error": best, "unbalanced_error": plain})


def _short(loss: float) -> float:
    return float(f"{loss:.{_DIGITS - 1}e}")
