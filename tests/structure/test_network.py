"""Network: which weights of which models are sites, how they are stored, and what is tied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import goldstick
from goldstick import surgery
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.nn import QuantizedLinear
from goldstick.structure.network import Network
from tests.support.tiny_models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_on_the_meta_device_has_the_same_sites(family: str) -> None:
    model = FAMILIES[family]()
    real = Network(model)
    assert Network(model.to("meta")).sites == real.sites
    assert real.sites
    assert {site.parameter_name for site in real.sites} <= dict(model.named_parameters(remove_duplicate=False)).keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_at_most_a_few_matrices_are_no_sites(family: str) -> None:
    model = FAMILIES[family]().to("meta")
    sites = {site.parameter_name for site in Network(model).sites}
    matrices = {name: value.numel() for name, value in model.named_parameters() if value.ndim >= 2}
    missed = {name: size for name, size in matrices.items() if name not in sites}
    assert sum(missed.values()) <= 0.2 * sum(matrices.values()), missed


def test_layouts_are_read_off_the_modules() -> None:
    llama = Network(FAMILIES["llama_gqa"]().to("meta")).by_name
    assert llama["model.layers.0.self_attn.k_proj"].layout is Layout.LINEAR
    assert tuple(llama["model.layers.0.self_attn.k_proj"].matrix_shape) == (32, 64)
    assert llama["model.embed_tokens"].role == "embedding"
    assert llama["lm_head"].role == "head"
    gpt2 = Network(FAMILIES["gpt2"]().to("meta")).by_name
    fused = gpt2["transformer.h.0.attn.c_attn"]
    assert fused.layout is Layout.TRANSPOSED
    assert (tuple(fused.shape), tuple(fused.matrix_shape), fused.in_features) == ((64, 192), (192, 64), 64)
    experts = Network(FAMILIES["mixtral"]().to("meta")).by_name["model.layers.0.mlp.experts.gate_up_proj"]
    assert experts.layout is Layout.EXPERTS
    assert tuple(experts.matrix_shape) == (4, 256, 64)
    resnet = [site for site in Network(FAMILIES["resnet"]().to("meta")).sites if site.layout is Layout.CONVOLUTION]
    assert resnet and all(site.in_features == site.shape[1] * site.shape[2] * site.shape[3] for site in resnet)


def test_every_block_is_found_once_and_holds_its_sites() -> None:
    network = Network(FAMILIES["llama_gqa"]().to("meta"))
    assert network.blocks == ("model.layers.0", "model.layers.1")
    assert [site.block for site in network.sites if "layers.1" in site.name] == ["model.layers.1"] * 7
    assert network.by_name["lm_head"].block is None


def test_lists_inside_a_block_are_no_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
            self.layers = nn.ModuleList(Block() for _ in range(2))

    assert Network(Model()).blocks == ("layers.0", "layers.1")


def test_an_encoder_decoder_gives_both_stacks_in_order() -> None:
    blocks = Network(FAMILIES["t5"]().to("meta")).blocks
    assert blocks == ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1")


def test_a_tied_head_names_the_embedding_it_shares_its_weight_with() -> None:
    network = Network(FAMILIES["gpt2"]())
    assert network.by_name["lm_head"].tied_to == "transformer.wte.weight"
    assert network.by_name["transformer.wte"].tied_to is None
    assert network.tied() == {"lm_head.weight": "transformer.wte.weight"}
    assert Network(FAMILIES["llama_gqa"]()).tied() == {}


def test_a_weight_is_given_as_a_matrix_that_shares_the_parameters_memory() -> None:
    model = FAMILIES["gpt2"]()
    network = Network(model)
    site = network.by_name["transformer.h.0.mlp.c_fc"]
    weight = network.weight(site)
    assert not weight.requires_grad
    assert torch.equal(weight, model.transformer.h[0].mlp.c_fc.weight.T)
    assert weight.data_ptr() == model.transformer.h[0].mlp.c_fc.weight.data_ptr()


def test_a_site_that_was_quantized_has_no_weight_to_give() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    network = Network(model)
    tensor = quantize_with_search(model[0].weight.detach(), Grid(bits=8), "minmax")
    experts = nn.Module()
    experts.gate_up_proj = nn.Parameter(torch.randn(2, 4, 8))
    fused = Network(nn.Sequential(experts))
    (site,) = fused.sites
    del experts.gate_up_proj
    experts.gate_up_proj = QuantizedLinear(tensor, Scheme(weight=Grid(bits=8)))
    with pytest.raises(StructureError, match=r"0\.gate_up_proj no longer holds a float parameter"):
        fused.weight(site)
    surgery.apply(network, [Quantize(site="0", scheme=Scheme(weight=Grid(bits=8)), tensor=tensor, algorithm="test")])
    with pytest.raises(StructureError, match="0 no longer holds a float parameter 'weight'"):
        network.weight(network.by_name["0"])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_inputs_or_outputs_stays_float_and_is_said() -> None:
    model = nn.Sequential(nn.Linear(8, 0), nn.Linear(0, 8), nn.Linear(8, 8))
    made = goldstick.apply(model, "rtn-w8a16")
    assert isinstance(made.model[2], QuantizedLinear) and type(made.model[0]) is type(made.model[1]) is nn.Linear
    reasons = {layer.name: layer.reason for layer in made.report.layers}
    assert "without inputs or outputs" in reasons["0.weight"] and "without inputs or outputs" in reasons["1.weight"]


def test_a_layer_that_has_no_shape_yet_is_named() -> None:
    with pytest.raises(StructureError, match=r"0\.weight has no shape yet.*Call the model once"):
        Network(nn.Sequential(nn.LazyLinear(8)))
