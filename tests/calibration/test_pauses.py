"""Passes that pause together: each layer runs once, and is solved on all that comes to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from goldstick.calibration.passes import PausedPasses
from goldstick.calibration.pauses import CapturedInput, inputs_in_order


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
