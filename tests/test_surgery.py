"""The surgeon: every edit does what it says, once, to what it names, and to nothing else."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick import surgery
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Fold, Quantize, SetWeight
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, StructureError
from goldstick.nn import PackedWeight, QuantizedEmbedding, QuantizedLinear, TiedQuantizedLinear
from goldstick.structure.network import Network
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

pytestmark = pytest.mark.usefixtures("reference_backend")


def quantization(network: Network, site: str, name: str = "w8a16") -> Quantize:
    scheme = Scheme.parse(name)
    tensor = quantize_with_search(network.weight(network.by_name[site]), scheme.weight, "minmax")
    return Quantize(site=site, scheme=scheme, tensor=tensor, algorithm="test")


SITES = {
    "llama_gqa": "model.layers.1.mlp.down_proj",
    "qwen2": "model.layers.0.self_attn.q_proj",
    "gpt2": "transformer.h.0.attn.c_attn",
    "resnet": "resnet.encoder.stages.1.layers.0.layer.0.convolution",
    "mixtral": "model.layers.0.mlp.experts.down_proj",
    "gemma3": "model.embed_tokens",
}


@pytest.mark.parametrize(("family", "site"), SITES.items())
@pytest.mark.parametrize("name", ["w8a16", "w3a16-g16-asym"])
def test_quantizing_equals_setting_the_dequantized_weight(family: str, site: str, name: str) -> None:
    quantized, rewritten = FAMILIES[family](), FAMILIES[family]()
    if family == "gemma3":
        for model in (quantized, rewritten):
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    if family == "mixtral":
        rewritten.set_experts_implementation("eager")
    network = Network(quantized)
    if not Scheme.parse(name).weight.divides(network.by_name[site].in_features):
        name = name.replace("g16", "channel")
    edit = quantization(network, site, name)
    inputs = sample_inputs(quantized)
    before = output_tensor(quantized, inputs)
    surgery.apply(network, [edit])
    surgery.apply(Network(rewritten), [SetWeight(site=site, weight=edit.tensor.dequantize())])
    answer = output_tensor(quantized, inputs)
    torch.testing.assert_close(answer, output_tensor(rewritten, inputs), rtol=1e-5, atol=1e-5)
    assert not torch.equal(answer, before)
    packed = [path for path, module in quantized.named_modules() if isinstance(module, PackedWeight)]
    assert packed == [site], "and nothing else was touched"


def test_setting_a_weight_writes_it_as_the_parameter_is_stored() -> None:
    model = FAMILIES["gpt2"]()
    network = Network(model)
    weight = torch.randn(192, 64)
    surgery.apply(network, [SetWeight(site="transformer.h.0.attn.c_attn", weight=weight)])
    assert torch.equal(model.transformer.h[0].attn.c_attn.weight, weight.T)


def test_a_fold_moves_a_scale_and_leaves_the_output() -> None:
    model = FAMILIES["llama_gqa"]()
    inputs = sample_inputs(model)
    before, gain = output_tensor(model, inputs), model.model.layers[0].input_layernorm.weight.detach().clone()
    scale = torch.rand(64) + 0.5
    consumers = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
    fold = Fold(producer="model.layers.0.input_layernorm", consumers=consumers, scale=scale)
    surgery.apply(Network(model), [fold])
    torch.testing.assert_close(output_tensor(model, inputs), before, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.model.layers[0].input_layernorm.weight, nn.Parameter(gain / scale))


def test_edits_apply_in_their_order() -> None:
    model = nn.Sequential(nn.Linear(16, 4))
    network = Network(model)
    weight = torch.randn(4, 16)
    scheme = Scheme.parse("w8a16")
    tensor = quantize_with_search(weight * 2, scheme.weight, "minmax")
    surgery.apply(
        network,
        [
            SetWeight(site="0", weight=weight),
            SetWeight(site="0", weight=weight * 2),
            Quantize(site="0", scheme=scheme, tensor=tensor, algorithm="test"),
        ],
    )
    assert isinstance(model[0], QuantizedLinear)
    assert torch.equal(model[0].dequantized(), tensor.dequantize())
    with pytest.raises(StructureError, match="0 was quantized already"):
        surgery.apply(network, [SetWeight(site="0", weight=weight)])


@pytest.mark.parametrize("kind", ["quantize", "set", "fold"])
def test_a_site_that_is_not_there_is_refused(kind: str) -> None:
    network = Network(nn.Sequential(nn.Linear(16, 4)))
    edit = quantization(network, "0")
    edits = {
        "quantize": Quantize(site="7", scheme=edit.scheme, tensor=edit.tensor, algorithm="test"),
        "set": SetWeight(site="7", weight=torch.zeros(4, 16)),
        "fold": Fold(producer="0", consumers=("7",), scale=torch.ones(4)),
    }
    with pytest.raises(StructureError, match="no site '7'"):
        surgery.apply(network, [edits[kind]])


@pytest.mark.parametrize("family", ["llama_gqa", "mixtral"])
def test_quantizing_twice_is_refused(family: str) -> None:
    network = Network(FAMILIES[family]())
    edit = quantization(network, SITES[family])
    surgery.apply(network, [edit])
    with pytest.raises(StructureError, match=r"was quantized already"):
        surgery.apply(network, [edit])


def test_a_module_registered_under_two_names_is_replaced_under_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(x))
            return result

    model = Shared()
    network = Network(model)
    assert list(network.by_name) == ["first"]
    surgery.apply(network, [quantization(network, "first")])
    assert isinstance(model.first, QuantizedLinear)
    assert model.second is model.first


def test_a_model_that_is_a_single_layer_is_refused_with_the_way_out() -> None:
    network = Network(nn.Linear(16, 4))
    with pytest.raises(StructureError, match=r"itself a Linear.*torch.nn.Sequential"):
        surgery.apply(network, [quantization(network, "")])


def test_an_embedding_that_does_more_than_look_up_still_does() -> None:
    model = FAMILIES["opt"]()
    network, name = Network(model), "model.decoder.embed_positions"
    edit = quantization(network, name)
    surgery.apply(network, [SetWeight(site=name, weight=edit.tensor.dequantize())])
    with torch.no_grad():
        before = output_tensor(model, sample_inputs(model))
        surgery.apply(network, [edit])
        assert torch.equal(output_tensor(model, sample_inputs(model)), before)
    assert isinstance(model.get_submodule(name), PackedWeight)


class Listed(nn.Module):
    """Calls its layers from lists of its own, as some models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))
        self.steps, self.pair, self.named = [self.first, nn.ReLU()], (self.second, 1), {"last": self.third}

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        found: Tensor = self.named["last"](self.pair[0](x))
        return found


def test_layers_that_are_called_from_lists_are_replaced_there_too() -> None:
    model = Listed()
    network = Network(model)
    surgery.apply(network, [quantization(network, name) for name in ("first", "second", "third")])
    assert model.steps[0] is model.first and model.pair == (model.second, 1) and model.named == {"last": model.third}
    assert all(isinstance(layer, QuantizedLinear) for layer in (model.first, model.second, model.third))


def test_a_replaced_layer_keeps_bias_and_training_mode() -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.Conv2d(3, 4, 2))
    network = Network(model)
    bias = model[0].bias.detach().clone()
    model[1].eval()
    surgery.apply(network, [quantization(network, "0"), quantization(network, "1")])
    assert (
        isinstance(model[0], QuantizedLinear) and isinstance(model[1], PackedWeight) and isinstance(model[1], nn.Conv2d)
    )
    assert torch.equal(model[0].bias, bias)
    assert (model[0].training, model[1].training) == (True, False)


def test_a_tied_head_runs_on_the_quantized_embedding() -> None:
    model = FAMILIES["gpt2"]()
    network = Network(model)
    owner, head = network.by_name["transformer.wte"], network.by_name["lm_head"]
    with pytest.raises(StructureError, match="not quantized"):
        surgery.tie(network, head, owner)
    surgery.apply(network, [quantization(network, "transformer.wte")])
    surgery.tie(network, head, owner)
    surgery.forget_ties(network)
    assert isinstance(model.transformer.wte, QuantizedEmbedding)
    assert isinstance(model.lm_head, TiedQuantizedLinear)
    x = torch.randn(2, 64)
    assert torch.equal(model.lm_head(x), x @ model.transformer.wte.dequantized().T)
    assert model.config.tie_word_embeddings is False
    model.tie_weights()
    assert isinstance(model.lm_head, TiedQuantizedLinear), "transformers does not tie it back"


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "qwen3_moe"])
def test_the_model_given_to_apply_stays_as_it_is(family: str) -> None:
    model = FAMILIES[family]()
    before = copy.deepcopy(model.state_dict())
    modules = [type(module) for module in model.modules()]
    config = model.config.to_dict()
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})
    assert result.model is not model
    assert any(isinstance(module, PackedWeight) for module in result.model.modules())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [type(module) for module in model.modules()] == modules
    assert model.config.to_dict() == config


def test_in_place_the_model_itself_is_rewritten() -> None:
    model = FAMILIES["llama_gqa"]()
    apart = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}, inplace=True)
    assert result.model is model
    inputs = sample_inputs(model)
    assert torch.equal(output_tensor(model, inputs), output_tensor(apart.model, inputs))


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2"])
def test_the_scale_of_a_static_input_goes_into_the_layer(family: str) -> None:
    network = Network(FAMILIES[family]())
    site = SITES[family]
    edit = quantization(network, site, "w8a8-static-shifted")
    with pytest.raises(QuantizationError, match="takes a scale and a zero, and what was given is neither"):
        surgery.apply(network, [edit])
    assert not isinstance(network.module(network.by_name[site]), PackedWeight), "nothing was changed"
    scale, zero = torch.tensor(0.02), torch.tensor(5, dtype=torch.int8)
    surgery.apply(network, [dataclasses.replace(edit, input_scale=scale, input_zero=zero)])
    layer = network.module(network.by_name[site])
    assert isinstance(layer, QuantizedLinear)
    assert layer.input_scale is not None and torch.equal(layer.input_scale, scale.reshape(1))
    assert layer.input_zero_point is not None and torch.equal(layer.input_zero_point, zero.reshape(1))
