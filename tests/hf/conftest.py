"""Fixtures of the format tests."""

from __future__ import annotations

import pytest
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

from goldstick import registration
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here


@pytest.fixture
def proof_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let proofs run in the test's own process."""
    monkeypatch.setattr(finish, "prove", prove_here)


@pytest.fixture
def transformers_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' tables and goldstick's wishes are put back afterwards."""
    for table in (AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING):
        for method in ("auto-round", "awq", "compressed-tensors", "gptq"):
            monkeypatch.setitem(table, method, table[method])
    monkeypatch.setattr(registration, "_asked_for", set())
