"""The fits of ggml's quantizers: for each group of weights the scale (and the minimum) of least weighted error.

All sums are taken in float32, term by term in order, and nothing is contracted into fused operations: these are
then the bits that ggml itself gives where it is compiled so. The compiled ``goldstick::fit_blocks`` does the same as
the plain torch of :mod:`goldstick.algorithms.ggml.plain_fits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.algorithms.ggml import plain_fits
from goldstick.core.compiled import compiled
from goldstick.core.element import Element


@dataclass(frozen=True, kw_only=True)
class AffineSearch:
    """Which inverse steps :func:`fit_affine` tries: (start + step · i + largest code) / (max − min), i = 0 … tries.

    Attributes:
        start: The first shift of the largest code.
        step: From one shift to the next.
        tries: The last i.
        absolute: Whether errors count by their magnitude, not squared.
    """

    start: float
    step: float
    tries: int
    absolute: bool = False

    def shifts(self, code_max: int) -> list[float]:
        """start + step · i + largest code, in float32."""
        start, step = _float32(self.start), _float32(self.step)
        return [_float32(_float32(start + _float32(step * i)) + code_max) for i in range(self.tries + 1)]


#: What is tried where an importance is known.
WEIGHTED = AffineSearch(start=-0.9, step=0.05, tries=36)


def fit_affine(x: Tensor, weight: Tensor, code_max: int, search: AffineSearch) -> tuple[Tensor, Tensor, Tensor]:
    """Scale s ≥ 0, minimum m ≥ 0 and codes q of x ≈ s · q − m with the least Σ weight · error.

    Starts from the range of the values, which contains 0, and tries the least-squares line through the codes of each
    inverse step of the ``search``. The minimum of a better line is that of the steps tried after it.

    Args:
        x: float32 [groups, width].
        weight: float32 [groups, width], what errors count.
        code_max: The largest code.
        search: Steps to try, and how errors count.

    Returns:
        s and m, float32 [groups], and the codes, uint8 [groups, width].
    """
    shifts = search.shifts(code_max)
    if _compiled(x):
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.goldstick.fit_blocks(
            "affine", x, weight, code_max, shifts, search.absolute
        )
        return found
    return plain_fits.fit_affine(x, weight, code_max, shifts, search.absolute)


def fit_symmetric(x: Tensor, weight: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Scale s and codes u of x ≈ s · (u − half) with the largest (Σ weight · x · q)² / Σ weight · q², q = u − half.

    Inverse steps are −(half + 0.1 i) / the value of largest magnitude, i = −9 … 9, so that its own code is −half or
    near it.

    Args:
        x: float32 [groups, width].
        weight: float32 [groups, width].
        half: Codes are 0 … 2 half − 1.

    Returns:
        s, float32 [groups], and the codes, uint8 [groups, width]; 0 and 0 for groups of zeros.
    """
    shifts = _tenths(half, 9)
    if _compiled(x):
        scale, _, codes = torch.ops.goldstick.fit_blocks("symmetric", x, weight, half, shifts)
        return scale, codes
    return plain_fits.fit_symmetric(x, weight, half, shifts)


def fit_by_changes(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """As :func:`fit_symmetric` with weight x², by single codes changed as long as the fit gets better, five times over.

    Args:
        x: float32 [groups, width].
        half: Codes are 0 … 2 half − 1.
    """
    if _compiled(x):
        scale, _, codes = torch.ops.goldstick.fit_blocks("changes", x, None, half, [])
        return scale, codes
    return plain_fits.fit_by_changes(x, half)


def fit_positive(x: Tensor, weight: Tensor, code_max: int) -> tuple[Tensor, Tensor]:
    """Scale s and codes u of x ≈ s · u for numbers of 0 or more: the scales and the minimums of a superblock.

    Inverse steps are (code_max + 0.1 i) / max, i = −4 … 4; then single codes are changed as in
    :func:`fit_by_changes`.

    Args:
        x: float32 [groups, width].
        weight: float32 [groups, width].
        code_max: The largest code.
    """
    shifts = _tenths(code_max, 4)
    if _compiled(x):
        scale, _, codes = torch.ops.goldstick.fit_blocks("positive", x, weight, code_max, shifts)
        return scale, codes
    return plain_fits.fit_positive(x, weight, code_max, shifts)


def fit_table(x: Tensor, weight: Tensor, element: Element) -> Tensor:
    """Scale s of x ≈ s · value with the largest (Σ weight · x · v)² / Σ weight · v², float32 [groups].

    The value of largest magnitude goes to the positive end of the table first, and then near the negative end, with
    inverse steps (first value + i) / it, i = −7 … 7.

    Args:
        x: float32 [groups, width].
        weight: float32 [groups, width].
        element: A table of ascending whole numbers.
    """
    shifts = [element.values[0] + i for i in range(-7, 8)]
    if _compiled(x):
        scale: Tensor = torch.ops.goldstick.fit_blocks("table", x, weight, 1, shifts, False, element.name)[0]
        return scale
    return plain_fits.fit_table(x, weight, element, shifts)


def _compiled(x: Tensor) -> bool:
    """Whether the C++ operator is built and loaded."""
    return compiled("fit_blocks", x.device) is not None


def _tenths(middle: int, most: int) -> list[float]:
    """middle + 0.1 · i in float32, i = −most … most without 0."""
    tenth = _float32(0.1)
    return [_float32(middle + _float32(tenth * i)) for i in (*range(-most, 0), *range(1, most + 1))]


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
