"""Rows that make up for each other's errors: the targets of each, and what is gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.solution import Solution
from goldstick.algorithms.two_sided import solve_two_sided
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Network

SCHEME = Scheme.parse("w3a16-g16")
ROWS, COLUMNS = 24, 32


def seen(rows: Tensor) -> InputObserver:
    """What saw these rows, ranges first."""
    observer = InputObserver(rows.shape[-1])
    observer.observe_range(rows)
    observer.observe(rows)
    return observer


def correlated(width: int) -> Tensor:
    """Rows whose channels go together."""
    return torch.randn(400, width) @ (torch.eye(width) + 0.5 * torch.randn(width, width))


def state_of(gradients: Tensor, inputs: Tensor, parts: int = 1) -> OutputGroups:
    """What a layer is solved by."""
    size = ROWS // parts
    slices = [slice(start, start + size) for start in range(0, ROWS, size)]
    across = [(part, seen(gradients[:, part])) for part in slices]
    observer = seen(inputs)
    return OutputGroups(parts=[(slice(0, ROWS), observer)], plain=observer, sizes=[1.0], across=across)


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_aim_at_what_is_best_for_all_when_those_decided_are_as_they_are(parts: int) -> None:
    torch.manual_seed(0)
    weight, gradients = torch.randn(ROWS, COLUMNS).double(), correlated(ROWS)
    asked: list[tuple[Tensor, Tensor]] = []

    def solve(target: Tensor, aimed: Tensor, _: InputObserver) -> Solution:
        asked.append((target, aimed))
        return Solution(tensor=quantize_with_search(target, SCHEME.weight, "minmax"))

    state = state_of(gradients, correlated(COLUMNS), parts)
    tensor, _ = solve_two_sided(weight, state, solve)
    rounded = tensor.dequantize().double()
    size = ROWS // parts
    for step, (targets, aimed) in enumerate(asked, start=1):
        for (part, observer), target, aim in zip(state.across, targets.chunk(parts), aimed.chunk(parts), strict=True):
            outer = observer.hessian() / observer.hessian().diagonal().mean()
            outer.diagonal().add_(0.02)
            free, done = slice(0, size - step + 1), slice(size - step + 1, size)  # rows one by one
            push = torch.linalg.solve(outer[free, free], outer[free, done])[-1:]
            row, behind = weight[part][free][-1:], slice(part.start + done.start, part.stop)
            torch.testing.assert_close(target, row + push @ (weight[behind] - rounded[behind]))
            torch.testing.assert_close(aim, row + push @ weight[behind])
    assert len(asked) == size


def test_outputs_whose_gradients_do_not_go_together_are_solved_each_for_itself() -> None:
    torch.manual_seed(1)
    weight, inputs = torch.randn(ROWS, COLUMNS), correlated(COLUMNS)
    alone = torch.eye(ROWS).repeat(20, 1)
    site = next(iter(Network(nn.Sequential(nn.Linear(COLUMNS, ROWS))).sites))
    stage = GPTQ(scheme="w3a16-g16", objective="loss", two_sided=True, cycles=1)
    found: Any = stage.solve(site, weight, state_of(alone, inputs), SCHEME)[0]
    nothing: Any = stage.solve(site, weight, state_of(torch.zeros(50, ROWS), inputs), SCHEME)[0]
    plain, observer = GPTQ(scheme="w3a16-g16", cycles=1), seen(inputs)
    for row in range(ROWS):
        one: Any = plain.solve(site, weight[row : row + 1], observer, SCHEME)[0]
        for edit in (found, nothing):
            assert torch.equal(edit.tensor.codes[row], one.tensor.codes[0])
            assert torch.equal(edit.tensor.scale[row], one.tensor.scale[0])


def test_the_error_of_both_sides_is_less_where_they_do() -> None:
    torch.manual_seed(2)
    weight, inputs = torch.randn(ROWS, COLUMNS), correlated(COLUMNS)
    gradients = torch.randn(400, 4) @ torch.randn(4, ROWS) + 0.1 * torch.randn(400, ROWS)
    site = next(iter(Network(nn.Sequential(nn.Linear(COLUMNS, ROWS))).sites))
    state = state_of(gradients, inputs)

    def error(stage: GPTQ, state: Any) -> float:
        (edit,) = stage.solve(site, weight, state, SCHEME)
        delta = (weight - edit.tensor.dequantize()).double()  # type: ignore[attr-defined]
        return float((gradients.double() @ delta @ inputs.double().T).square().sum())

    together = error(GPTQ(scheme="w3a16-g16", objective="loss", two_sided=True), state)
    assert together < 0.5 * error(GPTQ(scheme="w3a16-g16"), seen(inputs))


@pytest.mark.parametrize("objective", ["layer", "output"])
def test_it_is_of_the_loss(objective: str) -> None:
    with pytest.raises(RecipeError, match="say objective: loss"):
        goldstick.Recipe.load({"stages": [{"gptq": {"two_sided": True, "objective": objective}}]})
