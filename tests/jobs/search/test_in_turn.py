"""A search with one block in memory at a time finds what it finds with the whole model there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from goldstick.calibration.end_gradients import InMemory
from goldstick.errors import OutputError
from goldstick.jobs.load.load import load_float
from goldstick.jobs.search import gradient_scores, in_turn, reverse_sweep, rounding
from goldstick.jobs.search.chain import find_chain
from goldstick.jobs.search.find import search_recipe
from goldstick.jobs.search.in_turn import SearchedModel
from goldstick.jobs.search.layer_inputs import inputs_by_blocks, inputs_of_layers
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.target import Target
from goldstick.recipes.calibration import Calibration
from goldstick.structure.network import Network
from tests.support.temporary_files import TemporaryFiles

SCHEMES = ("w2a16-g32", "w4a16-g32", "w8a16-channel")


@pytest.fixture
def one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turn, "MOST_WHOLE", 0)
    monkeypatch.setattr(rounding, "MOST_KEPT", 0)


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_it_finds_the_same(method: Any, source_with_text: Path, request: pytest.FixtureRequest) -> None:
    text = Calibration(dataset=str(source_with_text / "text.txt"), samples=2, seq_len=16)

    def found() -> Any:
        return search_recipe(
            source_with_text, Target(share=0.5), text=text, schemes=SCHEMES, method=method, held_out_rows=4,
            calibration=text,
        )  # fmt: skip

    whole = found()
    request.getfixturevalue("one_block_at_a_time")
    again = found()
    assert again.record == whole.record and again.recipe == whole.recipe


def test_one_block_is_there_at_a_time(source_with_text: Path, one_block_at_a_time: None) -> None:
    searched = SearchedModel(source_with_text, 1)
    blocks = searched.network.blocks
    assert searched.streamed == set(blocks)

    def here() -> Iterator[str]:
        for block in blocks:
            if not any(one.is_meta for one in searched.model.get_submodule(block).parameters()):
                yield block

    seen = []
    handles = [
        searched.model.get_submodule(block).register_forward_hook(lambda *_: seen.append(list(here())))
        for block in blocks
    ]
    with torch.no_grad():
        searched.model(input_ids=torch.arange(8)[None] + 4, use_cache=False)
    for handle in handles:
        handle.remove()
    assert seen == [[block] for block in blocks]


def test_layers_of_blocks_that_come_and_go_are_changed_while_they_are_to_be(
    source_with_text: Path, one_block_at_a_time: None
) -> None:
    searched = SearchedModel(source_with_text, 1)
    rounded = RoundedLayers(searched.network, RUNTIMES["goldstick"], searched.dtypes, searched=searched)
    ids = torch.arange(12)[None] + 4

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]

    before = logits(searched.model)
    chosen = {site.name: "w2a16-g32" for site in searched.network.sites if site.role == "inner"}
    with rounded.become(chosen):
        changed = logits(searched.model)
    other = load_float(source_with_text).float().eval()
    network = Network(other)
    whole = RoundedLayers(network, RUNTIMES["goldstick"], searched.dtypes)
    with whole.become(chosen):
        assert torch.equal(changed, logits(other))
    assert torch.equal(before, logits(searched.model)) and not torch.equal(before, changed)


def test_a_sweep_over_blocks_gives_the_scores_of_the_whole_model(
    source_with_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(load_float(source_with_text).float().eval().requires_grad_(False))
    sites = [site for site in network.sites if not site.tied_to]
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.bfloat16 for site in sites})
    batches = [{"input_ids": torch.arange(24).reshape(2, 12) + 4}]

    def scores() -> dict[tuple[str, str], gradient_scores.GradientScore]:
        return gradient_scores.gradient_scores(
            network, batches, {site.name: [site] for site in sites}, {site.name: SCHEMES for site in sites}, rounded
        )

    by_blocks = scores()
    monkeypatch.setattr(gradient_scores, "find_chain", lambda *_: ())
    for pair, score in scores().items():
        assert by_blocks[pair].second == pytest.approx(score.second, rel=1e-3)
        assert by_blocks[pair].first >= score.first * 0.999  # of a tied weight, the sum over both its places
    assert all(parameter.requires_grad is False for parameter in network.model.parameters())


def test_changes_of_a_block_that_are_too_large_are_held_in_parts(
    source_with_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(load_float(source_with_text).float().eval().requires_grad_(False))
    sites = [site for site in network.sites if site.role == "inner"]
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.bfloat16 for site in sites})
    groups = {site.name: [site] for site in sites}, {site.name: SCHEMES for site in sites}
    batches = [{"input_ids": torch.arange(12)[None] + 4}]
    whole = gradient_scores.gradient_scores(network, batches, *groups, rounded)
    monkeypatch.setattr(reverse_sweep, "MOST_HELD", 1)
    parts = gradient_scores.gradient_scores(network, batches, *groups, rounded)
    for pair, score in parts.items():
        assert score.second == pytest.approx(whole[pair].second, rel=1e-4)


def test_what_layers_are_given_is_the_same_block_by_block(source_with_text: Path) -> None:
    model = load_float(source_with_text).float().eval()
    network = Network(model)
    ids = torch.arange(24).reshape(2, 12) + 4
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    batches = [{"input_ids": ids, "attention_mask": mask}, {"input_ids": ids.flip(0)}]
    blocks = find_chain(network, {"input_ids": ids[:1], "use_cache": False}, InMemory(model))
    expected = inputs_of_layers(network, network.sites, batches)
    found = inputs_by_blocks(network, network.sites, batches, blocks, InMemory(model))
    assert list(found) == list(expected) and blocks
    for name, observer in expected.items():
        assert found[name].tokens == observer.tokens == 44
        assert torch.equal(found[name].hessian(), observer.hessian())


def test_sweeps_for_which_no_disk_has_room_are_refused_before_they_begin(
    source_with_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_float(source_with_text).float().eval().requires_grad_(False)
    network, disk = Network(model), TemporaryFiles(monkeypatch, free=1)
    sites = [site for site in network.sites if site.role == "inner"]
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.bfloat16 for site in sites})
    groups = {site.name: [site] for site in sites}, {site.name: SCHEMES for site in sites}
    batches = [{"input_ids": torch.arange(24).reshape(2, 12) + 4}]
    blocks = find_chain(network, {"input_ids": torch.arange(12)[None], "use_cache": False}, InMemory(model))
    for sweep, said in (
        (lambda: gradient_scores.gradient_scores(network, batches, *groups, rounded), "sweep for gradient scores"),
        (lambda: inputs_by_blocks(network, network.sites, batches, blocks, InMemory(model)), "layers of a search"),
    ):
        disk.free, disk.peak = 1, 0
        with pytest.raises(OutputError, match=rf"{said}.* needs .* bytes for temporary files") as refused:
            sweep()
        assert disk.peak == 0
        (asked,) = re.findall(r"needs ([\d,]+) bytes", str(refused.value))
        disk.free = int(asked.replace(",", ""))
        sweep()
        assert disk.free / 2 < disk.peak <= disk.free


class Beside(nn.Module):
    """Two blocks that are given, beside the hidden state, something that a weight outside made."""

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.embed, self.other, self.beside = nn.Embedding(8, 4), nn.Embedding(8, 4), beside
        self.layers = nn.ModuleList([Added() for _ in range(2)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden, other = self.embed(input_ids), self.other(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, other if self.beside else other.detach())
        return hidden


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.linear(hidden) + other  # type: ignore[no-any-return]


@pytest.mark.parametrize("beside", [True, False])
def test_blocks_that_weights_outside_reach_by_other_ways_are_no_chain(beside: bool) -> None:
    model = Beside(beside).requires_grad_(False)
    found = find_chain(Network(model), {"input_ids": torch.arange(4)[None]}, InMemory(model))
    assert found == (() if beside else ("layers.0", "layers.1"))
