"""What a calibrated quantizer finds for the matrix, or for each of the matrices, of a site."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.algorithms.observers import ExpertObservers, Observers, observers_of
from goldstick.algorithms.output_error import Rival
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.qtensor import QuantizedTensor, joined
from goldstick.core.rows import row_chunks

TOKENS_FOR_A_RANK = 10
"""Inputs for each direction they have, below which a calibrated layer may fit these inputs better than others."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What was found for one matrix.

    Attributes:
        tensor: The codes, [out, in].
        damping: λ of the factorization that succeeded, in units of the mean of diag(H); 0 if none did, ``None`` for
            algorithms without one.
        fallback: Why the codes are those of rounding to nearest, or ``None`` if they are the algorithm's own.
        dead: Inputs that were always zero.
        loss: The :func:`output_error` of these codes, or ``None`` where H does not allow it to be measured.
        rtn_loss: The least loss of rounding to nearest.
        rank: The :func:`effective_rank` of the Hessian at that damping, or ``None`` where it was not factored.
    """

    tensor: QuantizedTensor
    damping: float | None = 0.0
    fallback: str | None = None
    dead: int = 0
    loss: float | None = None
    rtn_loss: float | None = None
    rank: float | None = None


def effective_rank(factor: Tensor, shift: float, dead: Tensor) -> float:
    """tr(H (H + shift·I)⁻¹) = Σⱼ (1 − shift · (UᵀU)ⱼⱼ): how many directions of the inputs outweigh the damping.

    The degrees of freedom of a ridge regression. GPTQ makes up for an error by one, so that on other inputs than the n
    it was fitted to, the squared error is larger by about 2·rank/n: hence the ten tokens that are asked for each.

    Args:
        factor: U, upper, with (H + shift·I)⁻¹ = UᵀU, float64 [in, in].
        shift: What was added to the diagonal of H.
        dead: Which columns of U are those of inputs that were always zero and count for nothing, bool [in].
    """
    inverse = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
    for part in row_chunks(factor):
        inverse += factor[part].square().sum(0)
    return max(0.0, float((1 - shift * inverse)[~dead].sum()))


def never_worse(tensor: QuantizedTensor, loss: float, rival: Rival) -> Solution:
    """The codes if they give less error of the output than the best rounding to nearest, otherwise that and why.

    Args:
        tensor: The algorithm's answer.
        loss: Its output error.
        rival: The rounding of least error, from :func:`least_error`.
    """
    name, rounded, rtn_loss = rival
    fallback = None
    if not loss < rtn_loss and not (
        torch.equal(tensor.codes, rounded.codes) and torch.equal(tensor.scale, rounded.scale)
    ):
        fallback = f"its output error {loss:.6g} is not below the {rtn_loss:.6g} of rounding with {name} ranges"
        tensor, loss = rounded, rtn_loss
    return Solution(tensor=tensor, fallback=fallback, loss=finite_or_none(loss), rtn_loss=finite_or_none(rtn_loss))


def finite_or_none(value: float) -> float | None:
    """The value, or ``None`` for NaN and infinity."""
    return value if math.isfinite(value) else None


def solve_each(
    weight: Tensor,
    state: Observers | OutputGroups,
    solve: Callable[[Tensor, InputObserver, bool], Solution],
    wanted: Collection[str] = ("hessian",),
) -> tuple[QuantizedTensor, dict[str, float | str]]:
    """Solve every matrix of [..., out, in], or every part of the outputs of one, on the inputs it saw; the codes
    together, and notes for the report.

    Args:
        weight: float [..., out, in].
        state: Its observer; for experts one each, and one for each part of the outputs where it weights its inputs.
        solve: Solves one matrix; told whether its Hessian is worth keeping for other layers.
        wanted: Names of the statistics that it asks of the observer.

    Raises:
        QuantizationError: There are not as many observers as matrices.
    """
    if isinstance(state, OutputGroups):
        solutions = state.each(lambda part, observer: solve(weight[part], observer, False))
        tensor = joined([solution.tensor for solution in solutions], weight.shape, solutions[0].tensor.grid)
        return tensor, solution_notes(solutions, [observer for _, observer in state.parts])
    observers = observers_of(state, weight)
    matrices = weight.reshape(-1, *weight.shape[-2:])
    alone = len(observers) == 1

    def solved(number: int) -> Solution:
        return solve(matrices[number], observers[number], alone)

    if isinstance(state, ExpertObservers):
        solutions = state.each(solved, wanted)
    else:
        solutions = [solved(number) for number in range(len(observers))]
    tensor = _stacked([solution.tensor for solution in solutions], weight.shape[:-2])
    return tensor, solution_notes(solutions, observers)


def _stacked(tensors: Sequence[QuantizedTensor], lead: torch.Size) -> QuantizedTensor:
    """One tensor [*lead, out, in] of the matrices of all experts."""

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).reshape(*lead, *parts[0].shape)

    zeros = [tensor.zero for tensor in tensors if tensor.zero is not None]
    divisors = [tensor.global_scale for tensor in tensors if tensor.global_scale is not None]
    return QuantizedTensor(
        codes=joined([tensor.codes for tensor in tensors]),
        scale=joined([tensor.scale for tensor in tensors]),
        zero=joined(zeros) if zeros else None,
        grid=tensors[0].grid,
        global_scale=joined(divisors) if divisors else None,
    )


def solution_notes(solutions: Sequence[Solution], observers: Sequence[InputObserver]) -> dict[str, float | str]:
    """What the report says of a site: its largest damping, fewest tokens, summed losses, its first fallback."""
    notes: dict[str, float | str] = {
        "tokens": min(observer.tokens for observer in observers),
        "dropped_tokens": sum(observer.dropped for observer in observers),
        "dead_inputs": sum(solution.dead for solution in solutions),
    }
    dampings = [solution.damping for solution in solutions if solution.damping is not None]
    if dampings:
        notes["damping"] = max(dampings)
    ranks = [solution.rank for solution in solutions if solution.rank is not None]
    if ranks:
        rank = round(max(ranks), 1)
        notes |= {"effective_rank": rank, "tokens_needed": math.ceil(TOKENS_FOR_A_RANK * rank)}
        pairs = zip(solutions, observers, strict=True)
        short = sum(observer.tokens < TOKENS_FOR_A_RANK * (solution.rank or 0.0) for solution, observer in pairs)
        notes |= {"short_of_tokens": short} if short else {}
    losses = [(solution.loss, solution.rtn_loss) for solution in solutions if solution.loss is not None]
    if losses:
        notes["output_error"] = sum(loss for loss, _ in losses)
        notes["rtn_output_error"] = sum(rtn or 0.0 for _, rtn in losses)
    reasons = [solution.fallback for solution in solutions if solution.fallback is not None]
    if reasons:
        share = f"{len(reasons)} of {len(solutions)} matrices: " if len(solutions) > 1 else ""
        notes["fallback"] = share + reasons[0]
    return notes
