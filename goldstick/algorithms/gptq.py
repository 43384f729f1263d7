"""GPTQ: rounding that makes up for each column's error in the columns still to come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from goldstick.algorithms.base import Algorithm, Exposure
from goldstick.algorithms.column_loop import solve_columns
from goldstick.algorithms.hessian_factor import Order, column_order, damping_ladder, inverse_factor, without_dead
from goldstick.algorithms.output_error import least_error, output_error
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.edits import Edit, Quantize
from goldstick.core.grid import Grid
from goldstick.core.hessian import HessianObserver
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Site


@dataclass(frozen=True, kw_only=True)
class GPTQSolution:
    """What GPTQ found for one matrix.

    Attributes:
        tensor: The codes, [out, in].
        damping: λ of the factorization that succeeded, in units of the mean of diag(H); 0 if none did.
        fallback: Why the codes are those of rounding to nearest, or ``None`` if they are GPTQ's.
        dead: Inputs that were always zero.
        loss: tr((W − Ŵ) H (W − Ŵ)ᵀ) of these codes, or ``None`` where H does not allow it to be measured.
        rtn_loss: The least loss of rounding to nearest.
    """

    tensor: QuantizedTensor
    damping: float = 0.0
    fallback: str | None = None
    dead: int = 0
    loss: float | None = None
    rtn_loss: float | None = None


def solve_gptq(
    weight: Tensor,
    hessian: Tensor,
    grid: Grid,
    *,
    order: Order = "gar",
    ladder: Sequence[float] = (0.01, 0.1, 1.0),
    search: RangeSearch = "mse",
) -> GPTQSolution:
    """Quantize ``weight`` so that tr((W − Ŵ) H (W − Ŵ)ᵀ) stays small, never larger than rounding to nearest.

    GPTQ (arXiv 2210.17323) with static groups: scales (in the weight's dtype, float32 for float64) and zeros come from
    the original weight before any column moves, and whatever order the columns are taken in is undone in the codes, so
    no order is stored. With H + λ·mean(diag H)·I = R Rᵀ (R upper: one Cholesky of the matrix read backwards),
    U = R⁻¹ is the upper factor of the inverse, H⁻¹ = UᵀU. Columns are then solved by :func:`solve_columns`.

    Inputs that were always zero are cut out of H and get H_jj = 1: no error reaches them or comes from them, so their
    codes are those of rounding to nearest.

    Args:
        weight: float [out, in].
        hessian: H = (2/n) Σ x xᵀ, float64 [in, in].
        grid: What the codes live on; 1 to 8 bits, symmetric or not.
        order: In which order columns are rounded: see :func:`column_order`.
        ladder: Values of λ to try, in units of the mean of diag(H), until the factorization succeeds.
        search: Where scales and zeros come from; fractional zeros (``hqq``) are kept as they are.

    Raises:
        QuantizationError: The weight holds NaN or infinity, or the shapes do not fit. A Hessian that cannot be used
            is no error: the answer is then rounding to nearest, and ``fallback`` says why.
    """
    if hessian.shape != (weight.shape[-1], weight.shape[-1]) or weight.ndim != 2:
        raise QuantizationError(f"A weight {tuple(weight.shape)} needs a Hessian [in, in], not {tuple(hessian.shape)}.")
    rounded = quantize_with_search(weight, grid, search)
    hessian = hessian.double()
    bad = int((~torch.isfinite(hessian)).sum())
    if bad:
        return GPTQSolution(tensor=rounded, fallback=f"{bad} values of the Hessian are NaN or infinite")
    dead = hessian.diagonal() == 0
    count = int(dead.sum())
    if count == len(dead):
        return GPTQSolution(tensor=rounded, dead=count, fallback="the Hessian is zero: no input ever reached the layer")
    columns = column_order(hessian.diagonal(), grid, order)
    ordered = without_dead(hessian, dead)[columns][:, columns]
    mean = float(hessian.diagonal()[~dead].mean())
    rivals: dict[str, QuantizedTensor] = {search: rounded}
    if search != "minmax":
        rivals["minmax"] = quantize_with_search(weight, grid, "minmax")
    for damping in ladder:
        factor = inverse_factor(ordered, damping * mean)
        if factor is None:
            continue
        codes = solve_columns(weight, factor, columns, rounded)
        solved = QuantizedTensor(codes=codes, scale=rounded.scale, zero=rounded.zero, grid=grid)
        return replace(never_worse(weight, solved, rivals, hessian), damping=damping, dead=count)
    reason = f"the Hessian is not positive definite, even damped by {ladder[-1]:g} of its mean diagonal"
    _, tensor, loss = least_error(weight, rivals, hessian)
    return GPTQSolution(tensor=tensor, dead=count, fallback=reason, loss=_finite(loss), rtn_loss=_finite(loss))


def never_worse(
    weight: Tensor, tensor: QuantizedTensor, rivals: Mapping[str, QuantizedTensor], hessian: Tensor
) -> GPTQSolution:
    """GPTQ's codes if they give less error of the output than every rival, otherwise the best rival and why.

    Args:
        weight: float [out, in].
        tensor: GPTQ's answer.
        rivals: Roundings to nearest, by the name of their ranges.
        hessian: H, float64 [in, in].
    """
    name, rounded, rtn_loss = least_error(weight, rivals, hessian)
    loss = output_error(weight, tensor, hessian)
    fallback = None
    same = torch.equal(tensor.codes, rounded.codes) and torch.equal(tensor.scale, rounded.scale)
    if not loss < rtn_loss and not same:
        fallback = f"its output error {loss:.6g} is not below the {rtn_loss:.6g} of rounding with {name} ranges"
        tensor, loss = rounded, rtn_loss
    return GPTQSolution(tensor=tensor, fallback=fallback, loss=_finite(loss), rtn_loss=_finite(rtn_loss))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class GPTQ(Algorithm):
    """Round column by column, each making up for the errors of those before it (arXiv 2210.17323).

    Never worse than rounding to nearest at the layer's output, on the inputs it saw: where it would be, or where the
    inputs do not carry it, rounding to nearest is kept and the notes of the edit say so.

    Attributes:
        range_search: Where scales come from, before any column moves: the ``minmax`` of the values, or the shrunken
            range of least error (``mse``).
        order: Which columns come first: those of large inputs inside each group and the groups of the largest first
            (``gar``), those of large inputs anywhere (``activation``), or as they are (``natural``). None of them
            costs anything at run time.
        damping: What is added to the diagonal of the Hessian, in units of its mean; times ten, up to 1, as long as the
            factorization fails.
        token_floor: A layer that saw fewer inputs than this fraction of its input features is rounded to nearest.
    """

    name: ClassVar[str] = "gptq"
    exposure: ClassVar[Exposure] = Exposure.BLOCKWISE

    range_search: Literal["minmax", "mse"] = "mse"
    order: Order = "gar"
    damping: float = 0.01
    token_floor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping <= 1:
            raise RecipeError(f"damping is a fraction of the mean diagonal in (0, 1], not {self.damping}.")
        if not self.token_floor >= 0:
            raise RecipeError(f"token_floor is a fraction of the input features, 0 or more, not {self.token_floor}.")
        if self.order not in get_args(Order):
            raise RecipeError(f"order is gar, activation or natural, not {self.order!r}.")

    def attach(self, site: Site) -> HessianObserver | list[HessianObserver]:
        """The Hessian of the site's inputs; for experts a list of them, one each."""
        experts = site.matrix_shape[:-2]
        if not experts:
            return HessianObserver(site.in_features)
        return [HessianObserver(site.in_features) for _ in range(math.prod(experts))]

    def solve(
        self, site: Site, weight: Tensor, state: HessianObserver | Sequence[HessianObserver], scheme: Scheme
    ) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in], with what was found out about it as notes.

        Raises:
            QuantizationError: The weight, or more than 1 % of the inputs, hold NaN or infinity.
        """
        observers = [state] if isinstance(state, HessianObserver) else list(state)
        matrices = weight.reshape(-1, *weight.shape[-2:])
        if len(observers) != len(matrices):
            raise QuantizationError(f"{len(matrices)} matrices need a Hessian each, not {len(observers)}.")
        solutions = [
            self._solve_matrix(matrix, observer, scheme.weight, keep=len(observers) == 1)
            for matrix, observer in zip(matrices, observers, strict=True)
        ]
        tensor = _stacked([solution.tensor for solution in solutions], weight.shape[:-2])
        notes = _notes(solutions, observers)
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]

    def _solve_matrix(self, weight: Tensor, observer: HessianObserver, grid: Grid, *, keep: bool) -> GPTQSolution:
        if observer.tokens < self.token_floor * observer.in_features:
            return GPTQSolution(
                tensor=quantize_with_search(weight, grid, self.range_search),
                fallback=f"{observer.tokens} inputs seen, fewer than {self.token_floor:g} of {observer.in_features}",
            )
        return solve_gptq(
            weight,
            observer.hessian(keep=keep).to(weight.device),
            grid,
            order=self.order,
            ladder=damping_ladder(self.damping),
            search=self.range_search,
        )


def _stacked(tensors: Sequence[QuantizedTensor], lead: torch.Size) -> QuantizedTensor:
    """One tensor [*lead, out, in] of the matrices of all experts."""

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).reshape(*lead, *parts[0].shape)

    zeros = [tensor.zero for tensor in tensors if tensor.zero is not None]
    return QuantizedTensor(
        codes=joined([tensor.codes for tensor in tensors]),
        scale=joined([tensor.scale for tensor in tensors]),
        zero=joined(zeros) if zeros else None,
        grid=tensors[0].grid,
    )


def _notes(solutions: Sequence[GPTQSolution], observers: Sequence[HessianObserver]) -> dict[str, float | str]:
    """What the report says of a site: its largest damping, fewest tokens, summed losses, its first fallback."""
    notes: dict[str, float | str] = {
        "damping": max(solution.damping for solution in solutions),
        "tokens": min(observer.tokens for observer in observers),
        "dropped_tokens": sum(observer.dropped for observer in observers),
        "dead_inputs": sum(solution.dead for solution in solutions),
    }
    losses = [(solution.loss, solution.rtn_loss) for solution in solutions if solution.loss is not None]
    if losses:
        notes["output_error"] = sum(loss for loss, _ in losses)
        notes["rtn_output_error"] = sum(rtn or 0.0 for _, rtn in losses)
    reasons = [solution.fallback for solution in solutions if solution.fallback is not None]
    if reasons:
        share = f"{len(reasons)} of {len(solutions)} matrices: " if len(solutions) > 1 else ""
        notes["fallback"] = share + reasons[0]
    return notes
