"""Passes that pause together: each layer runs once, and is solved on all that comes to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from greenlet import greenlet
from torch import Tensor, nn

import goldstick
from goldstick.calibration.passes import PausedPasses
from goldstick.calibration.pauses import CapturedInput, inputs_in_order
from goldstick.errors import StructureError


class Chain(nn.Module):
    """Two layers that share an input, and one after them that only positive sums reach."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.left(x) + self.right(x)
        found: Tensor = self.last(input=hidden) if float(x.sum()) > 0 else hidden
        return found


def passes(model: Chain, signs: list[float]) -> list[partial[Tensor]]:
    return [partial(model, torch.full((2, 4), sign) + torch.arange(4) / 8) for sign in signs]


def run_with_pauses(
    runs: list[partial[Tensor]], groups: list[list[nn.Module]], solve: Callable[[int, list[CapturedInput]], object]
) -> list[Tensor]:
    """What the passes give after every group was solved on all that came to it."""
    paused = PausedPasses(runs, groups)
    for number in paused.groups():
        solve(number, list(paused.captured_inputs()))
    return list(paused.outputs())


@torch.no_grad()
def test_all_passes_arrive_before_a_group_is_solved_and_go_on_through_the_new_weights() -> None:
    model = Chain()
    groups = [[model.left, model.right], [model.last]]
    runs, seen, calls = passes(model, [1.0, 2.0, 3.0]), [], Counter[nn.Module]()
    for module in (model.left, model.right, model.last):
        module.register_forward_hook(lambda module, *_: calls.update([module]))

    def double(number: int, captured_inputs: list[CapturedInput]) -> None:
        seen.append((number, len(captured_inputs), [captured.module for captured in captured_inputs]))
        assert not set(groups[number]) & calls.keys()
        for module in groups[number]:
            module.weight.mul_(2)

    outputs = run_with_pauses(runs, groups, double)
    assert seen == [(0, 3, [model.left] * 3), (1, 3, [model.last] * 3)]
    assert set(calls.values()) == {3}
    assert all(torch.equal(output, run()) for output, run in zip(outputs, runs, strict=True))


@torch.no_grad()
def test_a_pass_that_goes_another_way_does_not_hold_up_the_rest() -> None:
    model, seen = Chain(), {}
    outputs = run_with_pauses(
        passes(model, [1.0, -1.0, 2.0]),
        [[model.left, model.right], [model.last]],
        lambda number, captured_inputs: seen.update(
            {number: [float(captured.tensor.sum()) for captured in captured_inputs]}
        ),
    )
    assert len(seen[0]) == 3
    assert len(seen[1]) == 2
    assert len(outputs) == 3


@torch.no_grad()
def test_a_group_that_no_pass_reaches_is_not_solved() -> None:
    model, seen = Chain(), []
    run_with_pauses(passes(model, [-1.0]), [[model.left], [model.last]], lambda number, _: seen.append(number))
    assert seen == [0]


@torch.no_grad()
@pytest.mark.parametrize("where", ["solve", "forward"])
def test_a_failure_comes_out_and_leaves_no_hooks(where: str) -> None:
    model = Chain()
    runs = passes(model, [1.0, 2.0])

    def fail(*_: object) -> Tensor:
        raise ArithmeticError("here")

    if where == "forward":
        model.right.register_forward_hook(fail)
    with pytest.raises(ArithmeticError, match="here"):
        run_with_pauses(runs, [[model.left], [model.last]], fail if where == "solve" else lambda *_: None)
    assert all(not module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
def test_layers_are_found_in_the_order_they_run_and_by_what_they_share() -> None:
    model = Chain()
    found = inputs_in_order([model.last, model.right, model.left], passes(model, [1.0])[0])
    assert [module for module, _ in found] == [model.left, model.right, model.last]
    keys = [key for _, key in found]
    assert keys[0] == keys[1] != keys[2]
    assert all(not module._forward_pre_hooks for module in model.modules())


class InCoroutine(Chain):
    """Runs its first layers in a coroutine of its own."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = greenlet(lambda: self.left(x) + self.right(x)).switch()
        found: Tensor = self.last(hidden)
        return found


class InThread(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            found: Tensor = pool.submit(self.left, x).result() + self.right(x)
        return found


@torch.no_grad()
def test_a_pass_pauses_in_the_coroutines_of_a_model_too() -> None:
    model, seen = InCoroutine(), []
    runs = passes(model, [1.0, 2.0])
    outputs = run_with_pauses(
        runs, [[model.left, model.right], [model.last]], lambda number, inputs: seen.append((number, len(inputs)))
    )
    assert seen == [(0, 2), (1, 2)]
    assert all(torch.equal(output, run()) for output, run in zip(outputs, runs, strict=True))


def test_a_layer_that_is_called_from_another_thread_is_named() -> None:
    data = [torch.randn(8, 4)]
    with pytest.raises(StructureError, match=r"calls Linear\(in_features=4.* from another thread.*exclude the layer"):
        goldstick.apply(InThread(), "gptq-w4a16", data=data)
    recipe = {"stages": [{"gptq": {"scheme": "w4a16", "targets": {"include": ["right"]}}}]}
    goldstick.apply(InThread(), recipe, data=data)


class Adapted(nn.Linear):
    """A linear layer that holds another one, as adapters do."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.more = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.more(x)


def test_a_layer_that_holds_others_is_solved_for_what_its_weight_multiplies_and_so_are_they() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Adapted(32)), torch.randn(64, 32) * torch.logspace(-1, 1, 32)
    rounded = goldstick.apply(model, "rtn-w3a16-g32").model
    solved = goldstick.apply(model, "gptq-w3a16-g32", data=[x]).model
    for name, given in (("0", x), ("0.more", x)):
        weights = [one.get_submodule(name).weight.numbers() for one in (rounded, solved)]
        errors = [(given @ (weight - model.get_submodule(name).weight).T).norm() for weight in weights]
        assert errors[1] < 0.9 * errors[0]
