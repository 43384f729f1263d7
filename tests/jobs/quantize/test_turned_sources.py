"""A quantized source whose layers turn their input: to the float model that it stands for, nothing is turned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.hf.source import open_source
from tests.support.tiny_models import sample_inputs

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

INT8 = {"rtn": {"scheme": "w8a16-g32"}}
DOWN = "model.layers.1.mlp.down_proj.weight"


def made(source: Path, output: Path, form: str | None, *stages: Any) -> Path:
    recipe: dict[str, Any] = {"stages": list(stages)}
    goldstick.quantize(source, recipe | ({"export": {"format": form}} if form else {}), output=output)
    return output


def logits(directory: Path) -> Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float32)
    with torch.inference_mode():
        found: Tensor = model(**sample_inputs(model)).logits
    return found


@pytest.mark.parametrize("form", ["compressed-tensors", "native"])
def test_turned_weights_are_turned_back_when_they_are_read(form: str, sources: Path, tmp_path: Path) -> None:
    source = sources / "llama_gqa"
    turned = made(source, tmp_path / "turned", form, {"rotate": {"online": True}}, INT8)
    plain = made(source, tmp_path / "plain", form, "rotate", INT8)
    weights = [open_source(directory).tensors[DOWN].read() for directory in (turned, plain)]
    step = float(weights[1].abs().max()) / 127
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=2 * step)
    again = made(turned, tmp_path / "again", form, INT8)
    apart = (logits(again) - logits(turned)).norm() / logits(turned).norm()
    assert float(apart) < 0.05
