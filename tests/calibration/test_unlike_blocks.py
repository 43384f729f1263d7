"""Blocks of the same layers and shapes whose forwards go different ways: what is found in one is tried in each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import goldstick
from goldstick.structure.network import Network
from goldstick.structure.probe.input_groups import holds_in, probe_network

WIDTH = 32


class Block(nn.Module):
    """A residual block that adds what its norm gives, if it is told to: a norm that then can absorb no scale."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.norm, self.adds = nn.LayerNorm(WIDTH), adds
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        y: Tensor = x + self.down(torch.relu(self.up(h)))
        return y + h if self.adds else y


class Model(nn.Module):
    """Four of them, of both kinds by turns, behind an embedding with outliers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.embedding.weight.data[:, ::8] *= 20
        self.layers = nn.ModuleList(Block(adds=place % 2 == 1) for place in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


@torch.no_grad()
def test_a_scale_goes_only_where_the_block_at_hand_has_a_place_for_it() -> None:
    torch.manual_seed(0)
    model, batch = Model().eval(), {"ids": torch.randint(0, 50, (4, 32))}
    before = model(**batch)
    stages = [{"smoothquant": {}}, {"rtn": {"scheme": "w8a8-dynamic"}}]
    result = goldstick.apply(model, {"stages": stages}, data=[batch])
    distance = (result.model(**batch) - before).norm() / before.norm()
    assert float(distance) < 0.03, "0.18 where the scales of the first block's kind go into every norm"
    notes = {layer.name.removesuffix(".weight"): layer.notes for layer in result.report.layers}
    assert "smoothquant_balanced_error" in notes["layers.2.up"]
    assert "smoothquant_balanced_error" not in notes["layers.3.up"]


@torch.no_grad()
def test_findings_of_another_block_hold_or_do_not() -> None:
    torch.manual_seed(0)
    network = Network(Model().eval())
    found = probe_network(network, {"ids": torch.arange(40)[None]})["layers.0"]
    given = (torch.randn(2, 8, WIDTH),)

    def holds(block: str) -> bool:
        sites = [site for site in network.sites if site.block == block]
        return holds_in(network.model.get_submodule(block), sites, given, {}, found.moved_to(block))

    assert [holds(block) for block in network.blocks] == [True, False, True, False]
