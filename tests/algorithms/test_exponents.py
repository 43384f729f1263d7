"""The search for MXFP4's exponents, beside trying all of them: it gives nothing away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from goldstick.algorithms.range_error import rounding_error
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme

GRID = Scheme.parse("mxfp4a16").weight
GROUPS = 1000


def normal(random: torch.Generator) -> Tensor:
    return torch.randn(GROUPS, 32, generator=random)


def heavy_tailed(random: torch.Generator) -> Tensor:
    return normal(random) / normal(random).abs().clamp_min(0.01)


def with_outliers(random: torch.Generator) -> Tensor:
    return normal(random) * torch.where(torch.rand(GROUPS, 32, generator=random) < 0.03, 50.0, 1.0)


def one_weight(random: torch.Generator) -> Tensor:
    return torch.nn.functional.one_hot(torch.arange(GROUPS) % 32, 32) * torch.rand(GROUPS, 1, generator=random)


@pytest.mark.parametrize("kind", [normal, heavy_tailed, with_outliers, one_weight])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_exponent_rounds_a_group_with_less_error(
    kind: Callable[[torch.Generator], Tensor], weighted: bool
) -> None:
    random = torch.Generator().manual_seed(0)
    weight = kind(random)
    importance = torch.randn(32, generator=random).square() if weighted else None
    searched = quantize_with_search(weight, GRID, "imatrix" if weighted else "mse", importance)

    def error(scale: Tensor) -> Tensor:
        return rounding_error(weight[:, None], scale, None, None if importance is None else importance[None], GRID)

    found = error(searched.scale.float().reshape(GROUPS, 1))
    least = torch.stack([error(torch.full((GROUPS, 1), 2.0**exponent)) for exponent in range(-40, 20)]).amin(0)
    worse = found > least * (1 + 1e-6)
    # Where the largest weights of a group matter least, they may be clipped to less than a quarter.
    assert worse.float().mean() <= (0.01 if weighted else 0.0)
    assert found.sum() <= 1.0001 * least.sum()
