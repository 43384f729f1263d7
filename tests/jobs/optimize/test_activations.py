"""goldstick.optimize: quantized convolutions take over the batch norms and activations that alone read them."""

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
NORMED = "one convolution and batch norm"
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
        assert model.first(x).min() == 0 and model.relu(model.first(x)) is not model.relu(x)
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


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(3, 40, 3, bias=False), nn.BatchNorm2d(40), nn.ReLU(inplace=True)
        self.depthwise, self.plain = nn.Conv2d(40, 40, 3, groups=40), nn.BatchNorm2d(40, affine=False)
        self.read_twice, self.after = nn.Conv2d(40, 8, 1), nn.BatchNorm2d(8)
        for norm in (self.norm, self.plain, self.after):
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.1, 4)
        nn.init.normal_(self.norm.weight)  # half of them negative
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain(self.depthwise(self.relu(self.norm(self.first(x)))))
        y: Tensor = self.read_twice(x)
        found: Tensor = self.after(y) + y
        return found


@pytest.fixture
def normed() -> Any:
    torch.manual_seed(0)
    model = goldstick.apply(Normed().eval(), "rtn-w8a16").model
    return model, torch.randn(2, 3, 12, 12).contiguous(memory_format=torch.channels_last)


def close(found: Tensor, wanted: Tensor) -> bool:
    return float((found - wanted).square().sum() / wanted.square().sum()) < 1e-8


@compiled
def test_norms_are_scales_of_what_convolutions_write(normed: Any) -> None:
    model, x = normed
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        before = model(x)
        found = goldstick.optimize(model, {"x": x}).done
        assert [change.modules for change in found if change.what == NORMED] == [
            ("first", "norm"),
            ("depthwise", "plain"),
        ]
        assert [change.modules for change in found if change.what == TAKEN_OVER] == [("first", "relu")]
        assert close(model(x), before)
        made = model.first(x)
        assert made.min() == 0 and model.norm(made) is made and model.relu(made) is made
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x), model(x))
        with torch.inference_mode():
            assert torch.equal(model(x), twin(x)) and model.norm(made := model.first(x)) is made
    after = model.state_dict()
    assert state.keys() == after.keys() and all(torch.equal(state[name], after[name]) for name in state)


@compiled
def test_what_changes_later_is_seen(normed: Any) -> None:
    model, x = normed
    untouched, other = copy.deepcopy(model), Normed().norm.state_dict()
    goldstick.optimize(model, {"x": x})

    def same(change: Any) -> None:
        """Both networks give the same after a change of both."""
        with torch.no_grad():
            for one in (untouched, model):
                change(one)
            assert close(model(x).float(), untouched(x).float())

    def seen(module: nn.Module) -> list[Tensor]:
        kept: list[Tensor] = []
        module.register_forward_hook(lambda _, args, output: kept.append(args[0].clone()))
        return kept

    with torch.no_grad():
        model(x), untouched(x)
    same(lambda one: one.norm.running_mean.add_(1))
    same(lambda one: one.norm.weight.mul_(-2))
    same(lambda one: one.norm.load_state_dict(other))
    same(lambda one: (one.train()(3 * x), one.eval()))
    same(lambda one: one.first.weight_scale.mul_(2))
    same(lambda one: setattr(one, "relu", nn.Identity()))
    twins = [(seen(one.norm), seen(one.plain)) for one in (untouched, model)]
    same(lambda _: None)
    for one, another in zip(*twins, strict=True):
        assert close(another[-1], one[-1])  # what the convolution alone gives


@compiled
def test_a_norm_that_is_compiled_by_itself_does_its_work(normed: Any) -> None:
    model, x = normed
    with torch.no_grad():
        wanted = model(x)
        goldstick.optimize(model, {"x": x})
        model.norm.compile(backend="aot_eager")
        assert close(model(x).float(), wanted.float())


@compiled
def test_training_and_gradients_go_through_the_norms_themselves(normed: Any) -> None:
    model, x = normed
    goldstick.optimize(model, {"x": x})
    model(x).square().sum().backward()
    assert model.norm.weight.grad.abs().sum() > 0 and model.norm.bias.grad.abs().sum() > 0
    before = model.norm.running_mean.clone()
    with torch.no_grad():
        model.train()(x)
    assert not torch.equal(model.norm.running_mean, before)


@compiled
def test_the_compiler_and_export_see_the_modules_as_they_are(normed: Any) -> None:
    model, x = normed
    with torch.no_grad():
        before = model(x)
        goldstick.optimize(model, {"x": x})
        whole: Any = torch.compile(model, backend="eager", fullgraph=True)
        assert close(whole(x), before)
        assert close(torch.export.export(model, (x,)).module()(x), before)


@compiled
def test_a_second_call_goes_on_behind_norms_that_the_first_took_over() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 8, 1)
    x = torch.randn(2, 3, 12, 12)
    model = goldstick.apply(nn.Sequential(*layers).eval(), "rtn-w8a8-static", data=[x]).model
    with torch.no_grad():
        hook = model[2].register_forward_hook(lambda *_: None)
        first = goldstick.optimize(model, {"input": x}).changes
        before = model(x)
        hook.remove()
        second = goldstick.optimize(model, {"input": x}).changes
        assert torch.equal(model(x), before)
    assert [(change.what, change.modules) for change in first] == [(NORMED, ("0", "1"))]
    assert [(change.what, change.modules) for change in second] == [
        (TAKEN_OVER, ("0", "2")),
        ("one convolution and rounding", ("0", "3")),
    ]
    assert not goldstick.optimize(model, {"input": x}).changes


@compiled
@pytest.mark.parametrize(
    "layers",
    [(nn.Conv3d(2, 4, 1), nn.BatchNorm3d(4)), (nn.ConvTranspose2d(2, 4, 1), nn.BatchNorm2d(4))],
    ids=["three sides", "transposed"],
)
def test_that_a_batch_norm_is_left_is_said_of_a_batch_norm(layers: tuple[nn.Module, nn.Module]) -> None:
    model = goldstick.apply(nn.Sequential(*layers).eval(), "rtn-w8a16").model
    x = torch.randn(1, 2, *layers[0].weight.shape[2:])
    (left,) = goldstick.optimize(model, {"input": x}).left
    assert left.modules == ("1",) and "can take over this batch norm" in str(left.reason)
