"""Which layers beside experts decide, and which compute."""

from __future__ import annotations

import torch
from torch import nn
from transformers import JetMoeConfig, JetMoeForCausalLM

import goldstick
from goldstick.core.layout import Layout
from goldstick.nn.experts import QuantizedExperts
from goldstick.structure.network import Network
from tests.support.tiny_mixtures import MIXTURES
from tools.zoo.meaning import dequantized_twin
from tools.zoo.outputs import difference, outputs_of

HIDDEN, INNER, LATENT, EXPERTS = 16, 24, 12, 4


class Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, width))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, width, INNER))


class Mixture(nn.Module):
    """A router of two layers, the gate of a shared expert, that expert, and projections to a smaller width and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(HIDDEN, 8), nn.SiLU(), nn.Linear(8, EXPERTS))
        self.second = nn.Linear(HIDDEN, 1)
        self.third = nn.Sequential(nn.Linear(HIDDEN, INNER), nn.SiLU(), nn.Linear(INNER, HIDDEN))
        self.fourth = nn.Linear(HIDDEN, LATENT)
        self.fifth = nn.Linear(LATENT, HIDDEN)
        self.experts = Experts(LATENT)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"mixture": Mixture()}) for _ in range(2))
        self.last = nn.Linear(HIDDEN, 3)


def test_what_gives_no_width_that_anything_there_reads_decides() -> None:
    network = Network(Model().to("meta"))
    decides = {site.name for site in network.sites if site.role == "router"}
    assert decides == {f"layers.{n}.mixture.{name}" for n in range(2) for name in ("first.0", "first.2", "second")}


def test_the_gate_of_a_shared_expert_is_left_alone_and_the_expert_is_not() -> None:
    by_name = Network(MIXTURES["qwen3_next"]().to("meta")).by_name
    assert by_name["model.layers.0.mlp.shared_expert_gate"].role == "router"
    assert by_name["model.layers.0.mlp.shared_expert.down_proj"].role == "inner"


def test_without_experts_nothing_decides() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)) for _ in range(2))})
    assert all(site.role == "inner" for site in Network(model).sites)


def test_a_layer_of_all_experts_is_a_stack_and_what_chooses_among_them_a_router() -> None:
    config = JetMoeConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_key_value_heads=2, kv_channels=16,
        intermediate_size=64, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = JetMoeForCausalLM(config).eval()
    network = Network(model)
    layouts = {site.name: (site.layout, site.role) for site in network.sites if site.block}
    assert layouts["model.layers.0.mlp.input_linear"] == (Layout.EXPERTS, "inner")
    assert layouts["model.layers.0.mlp.router.layer"][1] == "router"
    assert layouts["model.layers.0.self_attention.experts.router.layer"][1] == "router"
    quantized = goldstick.apply(model, "rtn-w8a16").model
    assert isinstance(quantized.model.layers[0].mlp.input_linear.weight, QuantizedExperts)
    inputs = {"input_ids": torch.arange(16)[None]}
    meant = outputs_of(dequantized_twin(model, quantized), inputs)
    assert difference(outputs_of(quantized, inputs), meant) <= 1e-4
