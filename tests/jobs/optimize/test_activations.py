"""goldstick.optimize: quantized convolutions take over the activations that alone read them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.kernels.cpu import _C
from goldstick.structure.following import find_followers

TAKEN_OVER = "one convolution and activation"
compiled = pytest.mark.skipif(_C is None, reason="no compiled kernels")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Conv2d(3, 16, 3), nn.ReLU()
        self.depthwise, self.relu6 = nn.Conv2d(16, 16, 3, groups=16, padding=1), nn.ReLU6(inplace=True)
        self.point, self.hard = nn.Conv2d(16, 24, 1), nn.Hardtanh(-0.5, 0.25)
        self.read_twice, self.after = nn.Conv2d(24, 24, 1), nn.ReLU()
        self.read_before, self.in_place = nn.Conv2d(24, 24, 1), nn.ReLU(inplace=True)
        self.smooth, self.silu = nn.Conv2d(24, 24, 1), nn.SiLU()
        self.shared, self.again = nn.ReLU(), nn.Conv2d(24, 24, 1)
        self.hooked, self.seen = nn.Conv2d(24, 24, 1), nn.ReLU()
        self.line, self.end = nn.Conv1d(24, 8, 1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu6(self.depthwise(x)) + x.mean()
        x = self.hard(self.point(x))
        y = self.read_twice(x)
        x = self.after(y) + y
        y = self.read_before(x)
        x = y * 2 + self.in_place(y)
        x = self.silu(self.smooth(x))
        x = self.shared(self.again(self.shared(x)))
        x = self.seen(self.hooked(x)).flatten(2)
        line = self.line(x)
        self.end(line)
        return line


def looks_on(*_: object) -> None:
    """A hook."""


def quantized(recipe: str = "rtn-w8a8-dynamic") -> Any:
    torch.manual_seed(0)
    model = goldstick.apply(Network().eval(), recipe).model
    model.hooked.register_forward_hook(looks_on)
    return model


def taken_over(model: nn.Module, x: Tensor) -> list[tuple[str, ...]]:
    return [change.modules for change in goldstick.optimize(model, {"x": x}).done if change.what == TAKEN_OVER]


@compiled
@pytest.mark.parametrize("recipe", ["rtn-w8a8-dynamic", "rtn-w8a16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_the_same_bits_without_the_activations(recipe: str, dtype: torch.dtype) -> None:
    model, x = quantized(recipe).to(dtype), torch.randn(2, 3, 20, 20, dtype=dtype)
    with torch.no_grad():
        before = model(x)
        pairs = taken_over(model, x)
        assert pairs == [("first", "relu"), ("depthwise", "relu6"), ("point", "hard"), ("line", "end")]
        assert torch.equal(model(x), before)
        assert model.first(x).min() == 0 and torch.equal(model.relu(x), x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x), before)
        assert taken_over(model, x) == []  # once is enough


@compiled
def test_without_kernels_and_with_gradients_activations_stay_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = quantized(), torch.randn(2, 3, 20, 20)
    taken = copy.deepcopy(model)
    assert taken_over(taken, x)
    gradients = []
    for one in (model, taken):
        learned = x.clone().requires_grad_()
        one(learned).square().sum().backward()
        gradients.append(learned.grad)
    assert gradients[0].abs().sum() > 0 and torch.equal(*gradients)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    with torch.no_grad():
        assert torch.equal(taken(x), model(x))


@compiled
def test_bounds_that_the_dtype_does_not_have_are_left_to_the_activation() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Hardtanh(0, 0.3))
    model = goldstick.apply(model.bfloat16(), "rtn-w8a16").model
    found = goldstick.optimize(model, {"input": torch.randn(1, 3, 4, 4, dtype=torch.bfloat16)})
    assert TAKEN_OVER not in str(found)


@compiled
def test_a_subclass_that_does_more_keeps_its_activation() -> None:
    class Shifted(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) - 0.1

    model = goldstick.apply(nn.Sequential(Shifted(3, 8, 1), nn.ReLU()), "rtn-w8a16").model
    assert TAKEN_OVER not in str(goldstick.optimize(model, {"input": torch.randn(2, 3, 8, 8)}))


def test_a_follower_reads_alone_or_changes_what_others_read_after_it() -> None:
    model = Network().eval()
    pairs = find_followers(
        model, {"x": torch.randn(1, 3, 8, 8)}, lambda m: isinstance(m, nn.Conv2d | nn.Conv1d), lambda m: "LU" in repr(m)
    )
    assert ("read_twice", "after") not in pairs and ("read_before", "in_place") not in pairs
    assert {("first", "relu"), ("depthwise", "relu6"), ("smooth", "silu"), ("line", "end")} <= set(pairs)
