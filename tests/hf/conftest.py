"""Fixtures of the format tests."""

from __future__ import annotations

import pytest

from goldstick.jobs.save import finish
from tests.support.proofs import prove_here


@pytest.fixture
def proof_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let proofs run in the test's own process."""
    monkeypatch.setattr(finish, "prove", prove_here)
