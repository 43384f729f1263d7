"""Bias correction: the means of outputs come back, and layers without a bias say so."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.block_loop import calibrate
from goldstick.core.token_mask import TokenMask
from goldstick.recipes.measured import resolve_recipe
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.run import calibrated_work
from goldstick.structure.network import Network


class Net(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 8, 3, bias=bias), nn.Conv2d(8, 8, 3, groups=8, bias=bias)
        self.head = nn.Linear(8, 5, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.deep(self.first(x).relu()).relu().mean((2, 3)))
        return found


RTN = {"rtn": {"scheme": "w3a16-channel"}}


@pytest.mark.parametrize(
    "rounding", [RTN, {"rtn": {"scheme": "w3a8-static-shifted"}}, {"gptq": {"scheme": "w3a16-channel"}}]
)
def test_the_mean_of_every_output_is_what_it_was(rounding: dict[str, dict[str, str]]) -> None:
    torch.manual_seed(0)
    model, data = Net().eval(), [torch.rand(16, 3, 9, 9) for _ in range(3)]
    data_of = {"data": data} if rounding != RTN else {}
    plain = goldstick.apply(model, {"stages": [rounding]}, **data_of).model
    corrected = goldstick.apply(model, {"stages": [rounding, "correct_bias"]}, data=data).model
    x = torch.cat(data)
    with torch.no_grad():
        wanted = model(x).mean(0)
        far, near = ((one(x).mean(0) - wanted).norm() for one in (plain, corrected))
    assert near < 0.6 * far


def test_a_layer_without_a_bias_says_so() -> None:
    result = goldstick.apply(Net(bias=False), {"stages": [RTN, "correct_bias"]}, data=[torch.rand(4, 3, 9, 9)])
    notes = [layer.notes for layer in result.report.layers if layer.notes]
    assert notes and all(note["correct_bias"] == "the layer has no bias to correct" for note in notes)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(32, 32), nn.Linear(64, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(x).relu())
        return found


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_layer_that_no_input_reaches_keeps_its_bias_however_the_batches_go() -> None:
    torch.manual_seed(0)
    model, data = Blocks().eval(), [torch.randn(2, 32) for _ in range(4)]
    found = []
    for together in (True, False):
        network = Network(copy.deepcopy(model))
        recipe = Recipe.load({"stages": [{"gptq": {"scheme": "w4a16-channel"}}, "correct_bias"]})
        work = calibrated_work(network, resolve_recipe(recipe, network), lambda *_: None).within("layers.0")
        block: nn.Module = network.model.layers[0]  # type: ignore[assignment, index]
        runs = [partial(block, x) for x in data]
        with torch.no_grad():
            calibrate(BlockCalibration(network, work, runs, [TokenMask()] * 4, together=together))
        found.append({name: module.bias for name, module in block.named_children()})
    for name, bias in found[0].items():
        assert torch.equal(bias, found[1][name])
        assert torch.equal(bias, model.layers[0].get_submodule(name).bias) == (name == "unused")
