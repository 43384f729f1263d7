"""A network that has learned, made once."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.support.small_networks import TinyResidual, trained


@pytest.fixture(scope="session")
def _learned() -> TinyResidual:
    with torch.random.fork_rng():
        return trained()


@pytest.fixture
def network(_learned: TinyResidual) -> TinyResidual:
    """A copy of a network that has learned its data."""
    return copy.deepcopy(_learned)
