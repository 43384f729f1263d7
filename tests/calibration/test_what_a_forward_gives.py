"""What a forward gives decides on no layer: dataclasses, objects, numbers and nothing lead to the bytes of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick


@dataclass(frozen=True)
class Output:
    """What a model gives."""

    name: str
    scores: Tensor


class Giving(nn.Module):
    """Two layers, and something made of what they give.

    Args:
        made: Of that.
    """

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.made = made

    def forward(self, x: Tensor) -> Any:
        return self.made(self.layers(x))


MADE: dict[str, Callable[[Tensor], Any]] = {
    "a dataclass": lambda y: Output("scores", y),
    "an object": lambda y: SimpleNamespace(name="scores", scores=y),
    "places of the largest, and scores": lambda y: (y.argmax(-1), y),
    "places of the largest": lambda y: y.argmax(-1),
    "a number": lambda y: float(y.detach().sum()),
    "nothing": lambda y: None,
}
OF_INPUTS = ["gptq-w4a16-g16", "awq-w4a16-g16", "rtn-w8a8-static"]
OF_OUTPUTS = {"stages": [{"gptq": {"scheme": "w4a16-g16", "objective": "output"}}]}


def compressed(made: Callable[[Tensor], Any], recipe: Any) -> goldstick.Result:
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(16, 32, generator=generator) for _ in range(3)]
    return goldstick.apply(Giving(made), recipe, data=data)


def assert_equal(first: nn.Module, second: nn.Module) -> None:
    held = second.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize("recipe", OF_INPUTS)
@pytest.mark.parametrize("kind", MADE)
def test_a_layer_is_calibrated_on_its_inputs_whatever_the_forward_gives(kind: str, recipe: str) -> None:
    assert_equal(compressed(MADE[kind], recipe).model, compressed(lambda y: y, recipe).model)


@pytest.mark.parametrize("kind", ["a dataclass", "an object", "places of the largest, and scores"])
def test_an_objective_further_on_finds_the_floats(kind: str) -> None:
    assert_equal(compressed(MADE[kind], OF_OUTPUTS).model, compressed(lambda y: y, OF_OUTPUTS).model)


@pytest.mark.parametrize("kind", ["places of the largest", "a number", "nothing"])
def test_an_objective_further_on_is_that_of_the_layer_where_nothing_has_a_gradient(kind: str) -> None:
    found = compressed(MADE[kind], OF_OUTPUTS)
    assert_equal(found.model, compressed(MADE[kind], "gptq-w4a16-g16").model)
    notes = [str(record.notes["objective"]) for record in found.report.layers if "objective" in record.notes]
    assert len(notes) == 2 and all(note.startswith("layer: it is not known") for note in notes)
