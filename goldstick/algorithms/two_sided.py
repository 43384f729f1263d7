"""Two-sided: rows are solved one behind the other, each making up for what those before it have spoilt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from goldstick.algorithms.solution import Solution, solution_notes
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.qtensor import QuantizedTensor, joined

_DAMPING = 0.02  # of the mean of a diagonal
_STEPS = 128  # of neighbouring rows

#: Solves some rows [rows, in] on what the layer is given; the second are the rows for the float model's inputs.
SolveRows = Callable[[Tensor, Tensor, InputObserver], Solution]


def solve_two_sided(
    weight: Tensor, state: OutputGroups, solve: SolveRows
) -> tuple[QuantizedTensor, dict[str, float | str]]:
    """Quantize ``weight`` so that tr(Δᵀ G Δ H) stays small, Δ = W − Ŵ; the codes, and notes for the report.

    G = E[g gᵀ] of the gradients at the outputs, H the Hessian of the inputs: their Kronecker product stands for the
    Hessian of the loss (YAQA, arXiv 2505.22988; G is summed over tokens, as in its sketch A). With G = C Cᵀ, C lower,
    and L = C scaled to ones on its diagonal, the error is Σᵢ C²ᵢᵢ · |δᵢ + Σ_{k>i} L_ki δ_k|² in the norm of H. So rows
    are solved from the last to the first, each for the target w_i + Σ_{k>i} L_ki δ_k, by whatever solves a row for H
    alone. Several neighbouring rows are solved at once, as if G had nothing between them.

    Args:
        weight: float [out, in].
        state: The inputs, weighted by the loss, and the gradients at neighbouring outputs.
        solve: Solves some rows.
    """
    ((_, observer),) = state.parts
    sides = [_Side(exact=weight[part].double(), first=part.start, gradients=one) for part, one in state.across]
    solved: list[tuple[int, QuantizedTensor]] = []
    solutions = []
    for step in zip_longest(*(side.steps() for side in sides)):  # parts know nothing of each other
        here = [(side, rows) for side, rows in zip(sides, step, strict=True) if rows is not None]
        targets, aimed = zip(*(side.target(rows) for side, rows in here), strict=True)
        found = solve(torch.cat(targets).to(weight.dtype), torch.cat(aimed), observer)
        solutions.append(found)
        taken = 0
        for side, rows in here:
            tensor = found.tensor.rows(slice(taken, taken := taken + rows.stop - rows.start))
            side.take(rows, tensor)
            solved.append((side.first + rows.start, tensor))
    pieces = [tensor for _, tensor in sorted(solved, key=lambda one: one[0])]
    tensor = joined(pieces, weight.shape, pieces[0].grid)
    return tensor, solution_notes(solutions, [observer] * len(solutions))


class _Side:
    """Neighbouring rows, and what each of them makes of the errors behind it.

    Args:
        exact: The rows, float64 [rows, in].
        first: The first of them in the matrix.
        gradients: What saw the gradients at these outputs.
    """

    def __init__(self, exact: Tensor, first: int, gradients: InputObserver) -> None:
        self.first, self._exact = first, exact
        self._spoilt = torch.zeros_like(exact)  # δ
        outer = gradients.hessian().to(exact.device)
        mean = float(outer.diagonal().mean())
        self._lower = torch.eye(len(outer), dtype=torch.float64, device=exact.device)
        if 0 < mean < float("inf"):
            outer = outer / mean
            outer.diagonal().add_(_DAMPING)
            self._lower = torch.linalg.cholesky(outer)

    def steps(self) -> Iterator[slice]:
        """The rows from the last to the first, some at a time."""
        count = len(self._exact)
        size = -(-count // _STEPS)
        for stop in range(count, 0, -size):
            yield slice(max(0, stop - size), stop)

    def target(self, rows: slice) -> tuple[Tensor, Tensor]:
        """What some rows aim at, for the inputs there are and for those of the float model."""
        behind = slice(rows.stop, None)
        factors = torch.linalg.solve_triangular(
            self._lower[rows, rows], self._lower[behind, rows], upper=False, left=False
        ).T
        here = self._exact[rows]
        return here + factors @ self._spoilt[behind], here + factors @ self._exact[behind]

    def take(self, rows: slice, tensor: QuantizedTensor) -> None:
        """Take note of what became of some rows."""
        self._spoilt[rows] = self._exact[rows] - tensor.dequantize().double()
