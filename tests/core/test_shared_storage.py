"""Parameters on one storage that are not one parameter are changed one by one, in place too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.core.shared_storage import part_storage
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here


class Scorer(nn.Module):
    """Its head lies in the memory of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.emb, self.mid = nn.Embedding(100, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = nn.Parameter(self.emb.weight.data)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.mid(self.emb(ids)))


@pytest.mark.parametrize("recipe", ["rtn-w2a16-g32", "gptq-w2a16-g32", "awq-w4a16-g32"])
def test_a_float_embedding_stays_what_it_was_when_a_head_in_its_memory_is_rounded_in_place(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = None if recipe.startswith("rtn") else [torch.randint(0, 100, (8, 12)) for _ in range(8)]
    model = Scorer().eval()
    before = model.emb.weight.detach().clone()
    result = goldstick.apply(model, recipe, data=data, inplace=True)
    assert result.model is model and torch.equal(model.emb.weight, before)
    reasons = {layer.name: layer.reason for layer in result.report.layers}
    assert str(reasons["emb.weight"]).startswith("embedding: left alone")
    ids = torch.randint(0, 100, (2, 12))
    copied = goldstick.apply(Scorer().eval(), recipe, data=data).model
    assert torch.equal(model(ids), copied(ids)), "in place or not, it is the same"
    monkeypatch.setattr(finish, "prove", prove_here)
    result.save(tmp_path / "made")
    assert torch.equal(goldstick.load(tmp_path / "made", model=Scorer().eval())(ids), copied(ids))


def test_only_what_overlaps_gets_memory_of_its_own() -> None:
    flat = torch.arange(32.0)
    model: Any = nn.Module()
    model.first, model.second = nn.Parameter(flat[:16].view(4, 4)), nn.Parameter(flat[16:].view(4, 4))
    model.turned = nn.Parameter(model.first.data.t())
    model.one_row = nn.Parameter(torch.arange(4.0).expand(4, 4))
    model.averaged = nn.Parameter(torch.ones(4))
    model.register_buffer("average", model.averaged.data)
    model.tied = model.first
    addresses = {name: one.data_ptr() for name, one in model.named_parameters()}
    numbers = {name: one.detach().clone() for name, one in model.named_parameters()}
    part_storage(model)
    assert model.tied is model.first
    moved = {name for name, one in model.named_parameters() if one.data_ptr() != addresses[name]}
    assert moved == {"turned", "one_row", "averaged"}
    assert all(torch.equal(one, numbers[name]) for name, one in model.named_parameters())
