"""Whoever refers to a layer calls the quantized one afterwards, and calls it as before."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from transformers.pytorch_utils import Conv1D

import goldstick
from goldstick.errors import StructureError, UsageError
from goldstick.nn import PackedWeight, TiedQuantizedLinear
from goldstick.structure.network import Network

pytestmark = pytest.mark.usefixtures("reference_backend")


class Record:
    """Any object: no module."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer


class Referring(nn.Module):
    """Calls its one layer by a reference that is no registration."""

    def __init__(self, refer: Callable[[nn.Module], Any], call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        object.__setattr__(self, "reference", refer(self.layer))
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.reference, x)


REFERENCES: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, Tensor], Tensor]]] = {
    "an attribute": (lambda layer: layer, lambda held, x: held(x)),
    "a tuple in a list": (lambda layer: [(layer, 1)], lambda held, x: held[0][0](x)),
    "a dictionary": (lambda layer: {"first": [layer]}, lambda held, x: held["first"][0](x)),
    "an object": (Record, lambda held, x: held.layer(x)),
    "a bound method": (lambda layer: layer.forward, lambda held, x: held(x)),
    "another module's list": (
        lambda layer: Referring(lambda _: [layer], lambda held, x: held[0](x)),
        lambda held, x: held(x),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("inplace", [True, False])
def test_a_layer_is_quantized_for_whoever_refers_to_it(name: str, inplace: bool) -> None:
    model, x = Referring(*REFERENCES[name]), torch.randn(3, 16)
    before, bias = model(x), model.layer.bias.detach().clone()
    quantized = goldstick.apply(model, "rtn-w4a16", inplace=inplace).model
    found, weight = quantized(x), quantized.layer.weight.numbers()
    torch.testing.assert_close(found, x @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, before, rtol=1e-4, atol=1e-4)
    assert inplace or torch.equal(model(x), before)


def test_a_function_that_has_closed_over_a_layer_calls_the_quantized_one_in_place_and_is_refused_in_a_copy() -> None:
    model, x = nn.Sequential(nn.Linear(16, 16)), torch.randn(3, 16)
    layer = model[0]
    model.register_forward_hook(lambda module, args, output: layer(args[0]))
    with pytest.raises(StructureError, match=r"cannot be copied: .*layer refers.*inplace=True"):
        goldstick.apply(model, "rtn-w4a16")
    goldstick.apply(model, "rtn-w4a16", inplace=True)
    assert isinstance(layer, PackedWeight) and layer is model[0]
    assert torch.equal(model(x), layer(x))


class ScaledHead(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 8


class PositionEmbedding(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class Tied(nn.Module):
    """Two embeddings and a head of one weight, each with something of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(32, 16), PositionEmbedding(32, 16)
        self.head = ScaledHead(16, 32)
        self.head.weight = self.places.weight = self.words.weight
        self.alias = (self.head,)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.alias[0](self.words(ids) + self.places(ids))
        return found


def test_what_is_tied_to_an_embedding_keeps_its_class_its_forward_its_bias_and_its_hooks() -> None:
    model, ids = Tied().eval(), torch.arange(12).reshape(2, 6)
    seen: list[str] = []
    model.head.register_forward_hook(lambda *_: seen.append("head"))
    model.places.register_forward_hook(lambda *_: seen.append("places"))
    stage = {"scheme": "w8a16", "targets": {"include": ["words", "head", "places"]}, "tie": "keep"}
    quantized = goldstick.apply(model, {"stages": [{"rtn": stage}]}).model
    found = quantized(ids)
    assert seen == ["places", "head"]
    assert isinstance(quantized.head, TiedQuantizedLinear) and isinstance(quantized.head, ScaledHead)
    assert isinstance(quantized.places, PositionEmbedding)
    assert quantized.places.weight_packed is quantized.words.weight_packed
    twin = copy.deepcopy(model)
    twin.words.weight.data.copy_(quantized.words.stored_numbers())
    torch.testing.assert_close(found, twin(ids), rtol=1e-4, atol=1e-4)
    assert torch.equal(copy.deepcopy(quantized)(ids), found)


LAYERS: dict[str, tuple[Callable[[], nn.Module], str, Tensor]] = {
    "linear": (lambda: nn.Linear(16, 8), "input", torch.randn(3, 16)),
    "conv1d": (lambda: nn.Conv1d(4, 8, 3), "input", torch.randn(2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 8, 3), "input", torch.randn(2, 4, 9, 9)),
    "conv3d": (lambda: nn.Conv3d(4, 8, 3), "input", torch.randn(2, 4, 5, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 3), "input", torch.randn(2, 4, 5, 5)),
    "embedding": (lambda: nn.Embedding(8, 16), "input", torch.arange(4)),
    "bag": (lambda: nn.EmbeddingBag(8, 16), "input", torch.arange(8).reshape(2, 4)),
    "lstm": (lambda: nn.LSTM(16, 8), "input", torch.randn(3, 2, 16)),
    "gpt2": (lambda: Conv1D(8, 16), "x", torch.randn(2, 3, 16)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_quantized_layer_takes_its_input_by_the_name_that_the_float_one_does(name: str) -> None:
    build, argument, x = LAYERS[name]
    model = nn.Sequential(build())
    sites = [site.name for site in Network(model).sites]
    recipe = {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": sites}}}]}
    layer = goldstick.apply(model, recipe).model[0]
    assert any(isinstance(module, PackedWeight) for module in layer.modules())
    by_name, by_place = layer(**{argument: x}), layer(x)
    first = (by_name[0], by_place[0]) if isinstance(by_name, tuple) else (by_name, by_place)
    assert torch.equal(*first)


class Doubled(nn.Module):
    def forward(self, bias: Tensor) -> Tensor:
        return bias * 2


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_a_bias_that_a_parametrization_computes_goes_on_being_computed(name: str) -> None:
    build, _, x = LAYERS[name]
    model = nn.Sequential(build())
    nn.utils.parametrize.register_parametrization(model[0], "bias", Doubled())
    quantized = goldstick.apply(model, "rtn-w8a16").model
    assert isinstance(quantized[0], PackedWeight)
    torch.testing.assert_close(quantized(x), model(x), rtol=0.02, atol=0.02)
    assert torch.equal(copy.deepcopy(quantized)(x), quantized(x))


def test_a_model_that_torch_does_not_copy_is_named_with_the_way_out() -> None:
    layer, x = nn.Linear(16, 2), torch.randn(3, 16)
    prune.l1_unstructured(layer, "weight", 0.5)
    model = nn.Sequential(nn.Linear(16, 16), layer)
    before = model(x)
    with pytest.raises(StructureError, match=r"cannot be copied: .*inplace=True.*prune\.remove"):
        goldstick.apply(model, "rtn-w8a16")
    torch.testing.assert_close(goldstick.apply(model, "rtn-w8a16", inplace=True).model(x), before, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("held", [threading.Lock(), (one for one in range(3))], ids=["a lock", "a generator"])
def test_what_python_does_not_copy_is_named_with_the_way_out(held: Any) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    model[1].held = held
    with pytest.raises(StructureError, match=r"cannot be copied: 1\.held \(cannot pickle.*inplace=True"):
        goldstick.apply(model, "rtn-w8a16")
    assert goldstick.apply(model, "rtn-w8a16", inplace=True).model is model
    data = [torch.randn(4, 16) for _ in range(4)]
    with pytest.raises(StructureError, match=r"cannot be copied.*where no stage of the recipe compares"):
        goldstick.apply(nn.Sequential(nn.Linear(16, 16), model[1]), "gptq-distill-w8a16", data=data, inplace=True)


def test_what_was_quantized_before_is_not_saved_as_if_it_were_float(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    some = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["0"]}}}]}).model
    result = goldstick.apply(some, "rtn-w8a16")
    assert all(isinstance(layer, PackedWeight) for layer in result.model.children())
    with pytest.raises(UsageError, match=r"0 was quantized before \(1 layer\), .* goldstick.quantize\(directory"):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
