"""Blocks that read what the model's forward left for a batch outside their arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import goldstick
from goldstick.core.notices import SharedStateWarning
from goldstick.errors import StructureError

Data = list[dict[str, Tensor]]


class Attention(nn.Module):
    """Reads the mask that the model around it keeps."""

    def __init__(self, around: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        object.__setattr__(self, "around", around)

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.q(x) @ self.k(x).mT / 6).masked_fill(self.around.mask[:, None] == 0, -1e9)
        return x + self.o(scores.softmax(-1) @ self.v(x))


class WithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(self) for _ in range(2)])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.mask = mask
        for layer in self.layers:
            x = layer(x)
        return x


class Summing(nn.Module):
    """Adds what it computes to the sum of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        context.sum = context.sum + self.up(x)
        return x + self.down(functional.gelu(context.sum))


class WithContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Summing() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        context = SimpleNamespace(sum=0)
        for layer in self.layers:
            x = layer(x, context)
        return x


def masked(lengths: list[int]) -> Data:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(4, length, 32, generator=generator),
            "mask": torch.arange(length).expand(4, -1) < torch.randint(2, length, (4, 1), generator=generator),
        }
        for length in lengths
    ]


def plain() -> Data:
    return [{"x": one["x"]} for one in masked([8, 8, 8])]


def largest_inputs(model: nn.Module, data: Data) -> dict[str, float]:
    """The largest value that each layer is given in the model's own forward."""
    found: dict[str, float] = {}

    def note(name: str, _: nn.Module, args: tuple[Tensor]) -> None:
        found[name] = max(found.get(name, 0), float(args[0].abs().max()))

    linear = [name for name, module in model.named_modules() if hasattr(module, "in_features")]
    handles = [model.get_submodule(name).register_forward_pre_hook(partial(note, name)) for name in linear]
    with torch.no_grad():
        for batch in data:
            model(**batch)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    ("make", "data"),
    [(WithMask, masked([8, 8, 8])), (WithMask, masked([8, 14, 5])), (WithContext, plain())],
    ids=["a mask on the model", "masks of other lengths", "an object"],
)
def test_blocks_that_share_state_are_calibrated_on_what_the_forward_gives_them(
    make: Callable[[], nn.Module], data: Data
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    largest = largest_inputs(model, data)
    with pytest.warns(SharedStateWarning, match="outside their arguments"):
        compressed = goldstick.apply(model, "rtn-w8a8-static", data=data).model
    scales = {name: float(compressed.get_submodule(name).input_scale) for name in largest}
    assert scales == pytest.approx({name: value / 127.5 for name, value in largest.items()}, rel=0.02)


def test_learning_says_why_it_cannot_go_from_block_to_block() -> None:
    torch.manual_seed(0)
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}, {"learn": {"steps": 1}}]}
    with (
        pytest.warns(SharedStateWarning),
        pytest.raises(StructureError, match="read what its forward leaves outside their arguments; leave learn out"),
    ):
        goldstick.apply(WithMask().eval(), recipe, data=masked([8, 8, 8]))


class Noisy(nn.Linear):
    """Draws numbers, so that no two runs are alike."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn_like(x)


class WithNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.GELU(), Noisy(32, 32)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_blocks_that_draw_numbers_are_calibrated_one_by_one() -> None:
    model, told = WithNoise().eval(), []
    goldstick.apply(model, "gptq-w8a16", data=plain(), progress=lambda what, done, total: told.append(what))
    assert "calibrating layers.1" in told
