"""The column loop of one block as a CUDA graph: its thousands of small kernels start together, not one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Block = tuple[Tensor, Tensor]
#: Solves a block: ``solve_block`` of the column loop.
Solve = Callable[..., Block]

_MOST_GRAPHS = 16  # shapes of blocks, whose temporaries are kept


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """A graph, where it reads and where it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Block


_RECORDED: dict[object, _Recorded] = {}


def solved_by_graph(
    solve: Solve,
    weight: Tensor,
    factor: Tensor,
    steps: Tensor,
    zero: Tensor | None,
    group: Tensor,
    bits: int,
    element: str,
    dtype: str,
    minimums: bool,
) -> Block:
    """What ``solve`` gives, by a graph that was recorded when such a block first came; the arguments are its own.

    A graph has fixed addresses and columns, so each column is given a group of its own: steps and zeros are copied
    for each.
    """
    inputs = [weight, factor, steps[:, group], *([] if zero is None else [zero[:, group]])]
    shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs)
    key = solve, shapes, bits, element, dtype, minimums
    with torch.cuda.device(weight.device):
        return _replayed(key, inputs, lambda own: solve(
            own[0], own[1], own[2], own[3] if zero is not None else None, torch.arange(len(group)), bits, element,
            dtype, minimums,
        ))  # fmt: skip


def _replayed(key: object, inputs: list[Tensor], run: Callable[[list[Tensor]], Block]) -> Block:
    if key not in _RECORDED:
        if len(_RECORDED) >= _MOST_GRAPHS:
            _RECORDED.clear()
        own = [tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs]
        _RECORDED[key] = _record(own, lambda: run(own))
    recorded = _RECORDED[key]
    for place, tensor in zip(recorded.inputs, inputs, strict=True):
        place.copy_(tensor)
    recorded.graph.replay()
    codes, errors = recorded.outputs
    return codes.clone(), errors.clone()


def _record(inputs: list[Tensor], run: Callable[[], Block]) -> _Recorded:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # what is loaded or allocated with the first call cannot be recorded
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    return _Recorded(graph=graph, inputs=inputs, outputs=outputs)
