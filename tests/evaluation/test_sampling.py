"""Tokens are drawn by temperature and nucleus, and the same seed draws the same."""

from __future__ import annotations

import pytest
import torch

from goldstick.errors import UsageError
from goldstick.evaluation.sampling import Sampler, Sampling, likeliest

PROBABILITIES = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64)
ROWS = PROBABILITIES.log().expand(20_000, 4)


def shares(sampling: Sampling) -> torch.Tensor:
    return torch.bincount(Sampler(sampling)(ROWS), minlength=4) / len(ROWS)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_temperature_says(temperature: float) -> None:
    powered = PROBABILITIES ** (1 / temperature)
    expected = powered / powered.sum()
    assert torch.allclose(shares(Sampling(temperature=temperature)).double(), expected, atol=0.02)


def test_only_the_fewest_tokens_that_reach_top_p_are_drawn() -> None:
    found = shares(Sampling(top_p=0.7))
    assert torch.allclose(found, torch.tensor([0, 2 / 3, 0, 1 / 3]), atol=0.02)
    assert found[0] == found[2] == 0


def test_the_likeliest_is_left_in_the_smallest_nucleus_and_at_temperature_zero() -> None:
    for sampling in (Sampling(top_p=1e-9), Sampling(temperature=0), Sampling(temperature=1e-9)):
        assert Sampler(sampling)(ROWS).unique().tolist() == [1]
    assert likeliest(torch.tensor([[1.0, 2.0, 2.0]])).tolist() == [1]


def test_the_same_seed_draws_the_same_and_another_seed_differs() -> None:
    first, again, other = (Sampler(Sampling(seed=seed))(ROWS) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}, {"seed": 2**63}],
)
def test_settings_outside_their_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        Sampling(**settings)  # type: ignore[arg-type]
