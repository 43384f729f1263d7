"""Transformers models in a wrapper that passes everything on to them, as adapters come: modules as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.hf.cache import quantized_cache_of
from tests.support.tiny_models import FAMILIES, sample_inputs

pytestmark = pytest.mark.usefixtures("proof_here")


class WithAdapter(nn.Module):
    """A wrapper of another signature, whose attributes are those of the model in it."""

    def __init__(self, model: nn.Module, rank: int) -> None:
        super().__init__()
        self.model = model
        self.down, self.up = nn.Linear(128, rank, bias=False), nn.Linear(rank, 128, bias=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        logits: Tensor = self.model(*args, **kwargs).logits
        return logits + self.up(self.down(logits))


def wrapped() -> tuple[WithAdapter, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = FAMILIES["llama_gqa"]()
    return WithAdapter(model, 8).eval(), sample_inputs(model)


@pytest.mark.parametrize("recipe", ["gptq-w4a16-g32", "rotate-rtn-w8a16", "rtn-w8a16-kv8", "kv8"])
def test_they_are_compressed_saved_and_loaded_with_all_they_hold(recipe: str, tmp_path: Path) -> None:
    model, inputs = wrapped()
    data = None if recipe.startswith("rotate") else [inputs]
    result = goldstick.apply(model, recipe, data=data)
    with torch.no_grad():
        given, expected = result.model(**inputs), model(**inputs)
        assert (given - expected).norm() < (0.2 if "w4" in recipe else 0.05) * expected.norm()
        result.save(tmp_path / "saved")
        loaded = goldstick.load(tmp_path / "saved", model=wrapped()[0])
        assert torch.equal(loaded(**inputs), given)
    assert (quantized_cache_of(loaded) is not None) is ("kv8" in recipe)
