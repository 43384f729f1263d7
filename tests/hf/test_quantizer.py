"""Tensors of a checkpoint find their places in the model, whatever checkpoints of its kind call them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import goldstick
from tests.support.proofs import RECIPE
from tools.zoo.build import build
from tools.zoo.catalogue import architectures

pytestmark = pytest.mark.usefixtures("proof_here")


def test_fused_experts_that_checkpoints_call_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    (aria,) = architectures(["AriaForConditionalGeneration"])
    built = build(aria)
    result = goldstick.apply(built.model, RECIPE)
    loaded = goldstick.load(result.save(tmp_path / "out"))
    with torch.no_grad():
        assert torch.equal(loaded(**built.inputs).logits, result.model(**built.inputs).logits)
