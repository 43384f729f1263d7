"""Candidates of a search are rounded as the recipe will round them, each alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.jobs.load.load import load_float
from goldstick.jobs.search import layer_inputs
from goldstick.jobs.search.layer_inputs import inputs_of_layers
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.recipes.recipe import Recipe
from goldstick.structure.network import Network


@pytest.mark.parametrize("leaf", ["0.self_attn.v_proj", "1.mlp.down_proj"])
def test_a_candidate_is_what_gptq_makes_of_that_layer_alone(leaf: str, source_with_text: Path) -> None:
    batches = [{"input_ids": torch.arange(start, start + 48).reshape(2, 24) % 60 + 4} for start in (0, 48, 96)]
    model = load_float(source_with_text).float().eval()
    network = Network(model)
    site = next(site for site in network.sites if site.name.endswith(leaf))
    stage = {"scheme": "w3a16-channel", "range_search": "mse", "targets": {"include": [site.name]}}
    recipe = Recipe.load({"stages": [{"gptq": stage}]})
    whole = goldstick.apply(load_float(source_with_text).float(), recipe, data=batches).model
    expected = whole.get_submodule(site.name).dequantized().float()  # type: ignore[operator]
    inputs = inputs_of_layers(network, network.sites, batches)
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.float32}, inputs)
    assert torch.equal(rounded.matrix(site, "w3a16-channel"), expected)
    nearest = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.float32})
    assert not torch.equal(nearest.matrix(site, "w3a16-channel"), expected)
    assert not any(name.endswith("embed_tokens") for name in inputs)


def test_padding_is_not_counted(source_with_text: Path) -> None:
    model = load_float(source_with_text).float().eval()
    network = Network(model)
    ids = torch.arange(24).reshape(2, 12) + 4
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    found = inputs_of_layers(network, network.sites, [{"input_ids": ids, "attention_mask": mask}])
    assert {observer.tokens for observer in found.values()} == {20}


def test_where_hessians_would_not_fit_none_is_made(source_with_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "MOST_HESSIANS", 1000)
    network = Network(load_float(source_with_text).float().eval())
    assert inputs_of_layers(network, network.sites, []) == {}
