"""Which channels can be cut together, found by masking; and that cutting what is silent changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Collection

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cifar import ResNet
from goldstick import surgery
from goldstick.algorithms import SCOP
from goldstick.core.edits import Prune, Slice
from goldstick.errors import StructureError
from goldstick.structure.network import Network
from goldstick.structure.pruning.costs import costs_of
from goldstick.structure.pruning.cut import apply_cut, prune_from_dict, restore_scattered
from goldstick.structure.pruning.prunable import Prunable, cut_of
from goldstick.structure.pruning.search import find_prunable
from tests.support.small_networks import TinyResidual
from tests.support.tiny_models import FAMILIES

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 128, (2, 12), generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """Two convolutions without norms, the second read through a flattening; a sigmoid that is not 0 at 0 follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 5, 3, padding=1)
        self.hidden = nn.Linear(5 * 16, 7)
        self.last = nn.Linear(7, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.second(self.first(images).relu()).relu(), 2)
        scores: Tensor = self.last(self.hidden(x.flatten(1)).sigmoid())
        return scores


def probe(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> tuple[dict[str, Prunable], dict[str, str]]:
    network = Network(model.eval())
    layers = {site.module for site in network.sites if site.role == "inner"}
    groups, refused = find_prunable(network, args, kwargs, layers=layers)
    return {group.name: group for group in groups}, refused


def sides(group: Prunable) -> set[tuple[str, str]]:
    return {(member.module, member.side) for member in group.members}


def silence(model: nn.Module, group: Prunable, units: Collection[int], layers: Collection[str]) -> None:
    """Zeros in the rows of ``layers`` that belong to some units; norms lose gain and shift there."""
    with torch.no_grad():
        for member in group.members:
            if member.module in layers and member.side == "output":
                rows = [index for index, unit in enumerate(member.units) if unit in units]
                for value in model.get_submodule(member.module).parameters():
                    value[rows] = 0


def test_the_channels_of_a_residual_network_are_found_and_those_that_are_added_to_others_scattered() -> None:
    found, refused = probe(TinyResidual(), IMAGES)
    assert {name: sides(group) for name, group in found.items()} == {
        "stem": {("stem", "output"), ("norm", "output")},
        "first": {("first", "output"), ("first_norm", "output"), ("second", "input")},
        "second": {("second", "output"), ("second_norm", "output")},
        "hidden": {("hidden", "output"), ("classifier", "input")},
    }
    assert {name: group.scattered for name, group in found.items()} == {
        "stem": "norm",
        "first": None,
        "second": "second_norm",
        "hidden": None,
    }
    assert list(refused) == ["classifier"]
    assert "leave the network" in refused["classifier"]


def test_cutting_what_is_silent_leaves_the_outputs_equal() -> None:
    model = TinyResidual().eval()
    with torch.no_grad():  # norms that have learned something
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                for value in (module.weight, module.bias, module.running_mean, module.running_var):
                    value.uniform_(0.5, 1.5)
    found, _ = probe(model, IMAGES)
    dropped = {"stem": [1, 7], "first": [0, 1, 2], "second": [3], "hidden": [15, 4]}
    silent, norms = copy.deepcopy(model), {"stem": "norm", "first": "first_norm", "second": "second_norm"}
    for name, units in dropped.items():
        silence(silent, found[name], units, {name, norms.get(name, name)})
    before = model(IMAGES)
    apply_cut(model, cut_of(dropped, list(found.values())))
    torch.testing.assert_close(model(IMAGES), silent(IMAGES))
    assert not torch.allclose(before, silent(IMAGES))
    assert model.first.weight.shape == (5, 8, 3, 3)
    assert model.second.weight.shape == (7, 5, 3, 3)
    assert (model.first.out_channels, model.second.in_channels, model.first_norm.num_features) == (5, 5, 5)
    loaded = TinyResidual().eval()
    told = cut_of(dropped, list(found.values())).to_dict()
    surgery.apply(Network(loaded), [prune_from_dict(told)])
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(IMAGES), model(IMAGES))


def test_every_channel_of_a_deep_residual_network_is_seen_by_its_reader() -> None:
    model = ResNet(14).eval()
    found, refused = probe(model, torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert len(found) == 13
    assert list(refused) == ["linear"]
    inner = [group for name, group in found.items() if name.endswith(".conv1")]
    assert len(inner) == 6
    assert all(member.units == tuple(range(group.units)) for group in inner for member in group.members)
    assert all(group.scattered == name.replace("conv2", "bn2") for name, group in found.items() if "conv2" in name)


def test_a_channel_takes_all_its_columns_behind_a_flattening_with_it() -> None:
    found, refused = probe(Plain(), IMAGES)
    assert list(found) == ["first", "second"]
    columns = next(member for member in found["second"].members if member.side == "input")
    assert columns.units == tuple(index // 16 for index in range(80))
    assert "changes what the network computes" in refused["hidden"] or "added to others" in refused["hidden"]


@pytest.mark.parametrize(("family", "heads"), [("llama_mha", 4), ("llama_gqa", 2), ("qwen3", 2)])
def test_heads_and_hidden_channels_of_a_transformer_are_found(family: str, heads: int) -> None:
    model = FAMILIES[family]().eval()
    found, _ = probe(model, input_ids=TOKENS)
    attention = found["model.layers.1.self_attn.v_proj"]
    hidden = found["model.layers.1.mlp.gate_proj"]
    assert (attention.units, attention.heads, hidden.units, hidden.heads) == (heads, True, 128, False)
    short = {(module.removeprefix("model.layers.1."), side) for module, side in sides(attention) | sides(hidden)}
    assert short == {
        *((f"self_attn.{one}_proj", "output") for one in "qkv"),
        ("self_attn.o_proj", "input"),
        ("mlp.gate_proj", "output"),
        ("mlp.up_proj", "output"),
        ("mlp.down_proj", "input"),
    }
    silent = copy.deepcopy(model)
    silence(silent, attention, {1}, {attention.name})
    silence(silent, hidden, {5, 77}, {"model.layers.1.mlp.up_proj"})
    apply_cut(model, cut_of({attention.name: [1], hidden.name: [5, 77]}, [attention, hidden]))
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, silent(TOKENS).logits)


def test_layers_that_cannot_be_cut_are_told_with_the_reason() -> None:
    shared = nn.Linear(8, 8)
    _, refused = probe(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 2)), torch.randn(9, 8))
    assert refused["0"] == "it is called 2 times"
    found, refused = probe(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 2, 1)), IMAGES)
    assert "0" in refused
    assert "0" not in found
    assert "grouped" in refused["1"]


class Listed(nn.Module):
    """Layers in a ``ModuleList``, run one after the other, and a linear layer behind them."""

    def __init__(self, layers: list[nn.Module], last: nn.Linear) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.last(x.mean((2, 3)) if x.ndim == 4 else x)
        return scores


def modules_of(stage: SCOP, network: Network) -> list[str]:
    return [site.module for site in stage.sites(network)]


def test_layers_in_a_list_are_read_by_their_neighbours_and_found_as_in_a_sequence() -> None:
    def stage(inputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())

    listed, refused = probe(Listed([stage(3), stage(6), stage(6)], nn.Linear(6, 4)), IMAGES)
    in_order = nn.Sequential(stage(3), stage(6), stage(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    assert [sorted(side for _, side in sides(group)) for group in listed.values()] == [
        sorted(side for _, side in sides(group)) for group in probe(in_order, IMAGES)[0].values()
    ]
    assert list(listed) == ["layers.0.0", "layers.1.0", "layers.2.0"]
    assert not any(group.scattered for group in listed.values())
    assert list(refused) == ["last"]
    bare, _ = probe(Listed([nn.Linear(5, 6), nn.Linear(6, 7)], nn.Linear(7, 4)), torch.randn(9, 5))
    assert list(bare) == ["layers.0", "layers.1"]
    network = Network(Listed([stage(3), stage(6)], nn.Linear(6, 4)))
    assert modules_of(SCOP(), network) == ["layers.1.0", "last"]
    assert modules_of(SCOP(ends=True), network) == ["layers.0.0", "layers.1.0", "last"]
    assert modules_of(SCOP(), Network(nn.Sequential(nn.Conv1d(3, 6, 3), nn.Linear(6, 4)))) == ["1"]


class Auxiliary(nn.Module):
    """A second classifier, which reads the middle, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.second, self.third = nn.Conv2d(6, 5, 3), nn.Conv2d(5, 6, 3)
        self.last, self.other, self.another = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, images: Tensor) -> Tensor:
        first = nn.functional.dropout(self.norm(self.first(images)).relu(), training=self.training)
        second = self.second(first).relu()
        scores: Tensor = self.last(self.third(second).relu().mean((2, 3)))
        if self.training:
            scores = scores + self.other(first.mean((2, 3))) + self.another(second.mean((2, 3)))
        return scores


def test_what_a_branch_reads_in_training_mode_alone_keeps_its_width() -> None:
    model, state = Auxiliary(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, refused = probe(model, IMAGES)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: group.scattered for name, group in found.items()} == {"first": "norm", "third": None}
    assert "in training mode" in refused["second"]
    apply_cut(model, cut_of({"first": [0, 3], "third": [1]}, list(found.values())))
    assert model.train()(IMAGES).shape == (4, 4)


def test_channels_behind_a_norm_that_gives_zeros_can_be_cut_again() -> None:
    model = TinyResidual().eval()
    first, _ = probe(model, IMAGES)
    cuts = [cut_of({"second": [0, 5]}, list(first.values()))]
    apply_cut(model, cuts[0])
    again, _ = probe(model, IMAGES)
    assert again["second"].scattered == "second_norm"
    cuts.append(cut_of({"second": [1, 4]}, list(again.values())))  # 2 and 6 of the eight that there were
    apply_cut(model, cuts[1])
    assert model.get_submodule("second_norm").kept.tolist() == [1, 3, 4, 7]  # type: ignore[union-attr, operator]
    assert not model.second_norm(torch.randn(2, 4, 3, 3))[:, [0, 2, 5, 6]].any()
    loaded = TinyResidual().eval()
    for cut in cuts:
        apply_cut(loaded, prune_from_dict(cut.to_dict()))
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    loaded.get_submodule("second_norm").kept = torch.zeros(4, dtype=torch.long)
    restore_scattered(loaded, cuts)
    assert torch.equal(loaded(IMAGES), model(IMAGES))


def test_the_costs_of_a_cut_are_those_of_the_cut_network() -> None:
    model = TinyResidual().eval()
    found, _ = probe(model, IMAGES)
    costs = costs_of(model, (IMAGES,), {})
    by_hand = 64 * 9 * (3 * 8 + 8 * 8 + 8 * 8) + 8 * 16 + 16 * 4
    assert costs.of() == {"parameters": sum(value.numel() for value in model.parameters()), "macs": by_hand}
    cut = cut_of({"stem": [0], "first": [1, 2], "hidden": [3]}, list(found.values()))
    apply_cut(model, cut)
    assert costs.of(cut) == costs_of(model, (IMAGES,), {}).of()
    assert costs.of(cut)["parameters"] == sum(value.numel() for value in model.parameters())


def test_multiplications_of_every_kind_of_layer_are_those_that_torch_counts() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, stride=2, groups=8),
        nn.Conv2d(8, 16, 1, groups=4),
        nn.ConvTranspose2d(16, 6, 2, stride=2),
        weight_norm(nn.Conv2d(6, 6, 3, bias=False)),
        nn.Flatten(2),
        nn.Conv1d(6, 5, 2),
        nn.Linear(15, 7),
    ).eval()
    with FlopCounterMode(display=False) as counter:
        model(IMAGES)
    assert costs_of(model, (IMAGES,), {}).of()["macs"] == counter.get_total_flops() // 2 // len(IMAGES)
    tokens = torch.randn(2, 5, 8)
    attention = costs_of(nn.MultiheadAttention(8, 2, batch_first=True).eval(), (tokens, tokens, tokens), {})
    assert attention.of()["macs"] == 5 * 4 * 8 * 8


def test_a_cut_that_does_not_fit_is_refused_before_anything_changes() -> None:
    model = TinyResidual()
    good = Slice(module="first", side="output", kept=(0, 1), width=8)
    for wrong in (
        Slice(module="nothing", side="output", kept=(0,), width=8),
        Slice(module="second", side="input", kept=(0, 1), width=9),
        Slice(module="second", side="input", kept=(), width=8),
        Slice(module="second", side="input", kept=(1, 0), width=8),
        Slice(module="second", side="input", kept=(0, 8), width=8),
        Slice(module="first_norm", side="input", kept=(0,), width=8),
    ):
        with pytest.raises(StructureError):
            apply_cut(model, Prune(slices=(good, wrong)))
    assert model.first.weight.shape == (8, 8, 3, 3)
    with pytest.raises(StructureError, match="makes no sense"):
        prune_from_dict({"slices": [{"module": "first"}]})


class Averaging(nn.Module):
    """Two residual blocks of the same layers, the second of which divides its channels by their mean."""

    class Block(nn.Module):
        def __init__(self, divides: bool) -> None:
            super().__init__()
            self.up, self.down, self.divides = nn.Linear(8, 16), nn.Linear(16, 8), divides

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.up(x))
            y: Tensor = x + self.down(h / (1 + h.mean(-1, keepdim=True)) if self.divides else h)
            return y

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Block(divides=place == 1) for place in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_channels_of_a_block_that_goes_another_way_than_its_likes_are_looked_at_apart() -> None:
    torch.manual_seed(0)
    layers = {f"layers.{place}.up" for place in range(3)}
    groups, refused = find_prunable(Network(Averaging()), (torch.randn(4, 8),), {}, layers=layers)
    assert [group.name for group in groups] == ["layers.0.up", "layers.2.up"]
    assert list(refused) == ["layers.1.up"]
