"""SmoothQuant: its formula by loops, and planted outliers that it recovers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from goldstick.algorithms import SmoothQuant, SmoothScale, smoothquant
from goldstick.algorithms.smooth_scale import SmoothLoss
from goldstick.algorithms.smoothquant import ALPHAS, smooth_scale
from goldstick.errors import RecipeError
from tests.support.input_groups import inputs, members, observed


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
def test_the_scale_is_that_of_the_paper(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        smoothquant, "least_loss", lambda loss, candidates: SmoothScale(scale=next(iter(candidates))[1])
    )
    x, group = inputs(), members("w8a8-dynamic")
    x[:, 7] = 0
    for member in group:
        member.weight[:, 9] = 0
    found = SmoothQuant(alpha=alpha).smooth_scale(group, observed(x)).scale
    for channel in range(64):
        activation = max(abs(float(row[channel])) for row in x)
        weight = max(abs(float(row[channel])) for member in group for row in member.weight)
        wanted = activation**alpha / weight ** (1 - alpha) if activation and weight else 1.0
        assert found is not None
        assert float(found[channel]) == pytest.approx(wanted, rel=1e-6)


def test_dead_channels_keep_their_size_and_extremes_are_bounded() -> None:
    activation = torch.tensor([0.0, 1.0, 1e30, 4.0], dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0, 1e-30, 1.0], dtype=torch.float64)
    assert smooth_scale(activation, weight, 0.5).tolist() == pytest.approx([1.0, 1.0, 1e4, 2.0])


@pytest.mark.parametrize("alpha", [0.5, "search"])
def test_planted_outliers_are_recovered(alpha: Any) -> None:
    """Two channels a thousand times the others, read by weights as much smaller, leave no step to the others."""
    x, group = inputs(factor=1000.0), members("w8a8-dynamic")
    for member in group:
        member.weight[:, [5, 40]] /= 1000
    loss = SmoothLoss(group, observed(x))
    scale = SmoothQuant(alpha=alpha).smooth_scale(group, observed(x)).scale
    assert scale is not None
    assert loss(scale) < loss(None) / 1000
    others = [channel for channel in range(64) if channel not in (5, 40)]
    assert scale[[5, 40]].min() > 100 * scale[others].max()


def test_the_search_is_the_best_of_all_alphas() -> None:
    x, group = inputs(), members("w8a8-dynamic")
    found = SmoothQuant(alpha="search").smooth_scale(group, observed(x))
    each = {alpha: SmoothQuant(alpha=alpha).smooth_scale(group, observed(x)).notes for alpha in ALPHAS}
    errors = {alpha: float(notes.get("balanced_error", math.inf)) for alpha, notes in each.items()}
    assert found.notes["alpha"] == min(errors, key=lambda alpha: errors[alpha])
    assert found.notes["balanced_error"] == min(errors.values())


def test_an_alpha_that_does_harm_is_not_used() -> None:
    """One token with one large value makes a whole column of weights large, and leaves no step to the others."""
    x = torch.randn(512, 64)
    x[0, 5] = 300
    found = SmoothQuant(alpha=1.0).smooth_scale(members("w8a8-dynamic"), observed(x))
    assert found.scale is None
    assert found.notes["alpha"] == 1.0
    assert "no scale lowers the simulated output error" in str(found.notes["unbalanced"])


def test_it_needs_an_input() -> None:
    found = SmoothQuant().smooth_scale(members("w8a8-dynamic"), observed(torch.zeros(0, 64)))
    assert found.scale is None
    assert found.notes == {"unbalanced": "no input ever reached the layers"}


@pytest.mark.parametrize("alpha", [-0.1, 1.5, math.nan])
def test_an_alpha_that_means_nothing_is_refused(alpha: float) -> None:
    with pytest.raises(RecipeError, match="alpha"):
        SmoothQuant(alpha=alpha)
