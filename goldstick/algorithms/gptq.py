"""GPTQ: rounding that makes up for each column's error in the columns still to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from goldstick.algorithms.base import Quantizer
from goldstick.algorithms.column_importance import OF_GGML
from goldstick.algorithms.coordinate_descent import damped_hessian, descend, sweep_factors
from goldstick.algorithms.gptaq import gptaq_target
from goldstick.algorithms.guide import Guide, guide_for
from goldstick.algorithms.guided import Guided
from goldstick.algorithms.hessian_factor import Order, column_order, damping_ladder, inverse_factor
from goldstick.algorithms.hessian_quantizer import HessianQuantizer
from goldstick.algorithms.observers import Observers
from goldstick.algorithms.output_error import (
    estimated_error,
    least_error,
    least_undamped,
    output_error,
    undamped_error,
)
from goldstick.algorithms.ranges import RangeSearch
from goldstick.algorithms.roundings import not_finite, rounded_without_data, roundings, too_few_inputs
from goldstick.algorithms.row_ranges import solve_with_ranges
from goldstick.algorithms.solution import Solution, effective_rank, finite_or_none, never_worse, solve_each
from goldstick.algorithms.two_sided import solve_two_sided
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.edits import Edit, Quantize
from goldstick.core.freed_memory import make_room
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.scheme import Scheme
from goldstick.core.shared_rows import SharedRows
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Site


def solve_gptq(
    weight: Tensor,
    hessian: Tensor,
    grid: Grid,
    *,
    order: Order = "gar",
    ladder: Sequence[float] = (0.01, 0.1, 1.0),
    search: RangeSearch = "mse",
    memo: dict[Any, Any] | None = None,
    drift: Tensor | None = None,
    alpha: float = 1.0,
    overwrite: bool = False,
    cycles: int = 0,
    largest: Tensor | None = None,
    rows: SharedRows | None = None,
    aimed: Tensor | None = None,
) -> Solution:
    """Quantize ``weight`` so that tr((W − Ŵ) H (W − Ŵ)ᵀ) stays small, never larger than rounding to nearest.

    GPTQ (arXiv 2210.17323) with static groups: scales (in the weight's dtype, float32 for float64) and zeros come from
    the original weight before any column moves, and whatever order the columns are taken in is undone in the codes, so
    no order is stored. With H + λ·mean(diag H)·I = R Rᵀ (R upper: one Cholesky of the matrix read backwards),
    U = R⁻¹ is the upper factor of the inverse, H⁻¹ = UᵀU. Columns are then solved by :func:`solve_columns`, and each
    row has the ranges of ``search`` or, where these clip it, perhaps plain ones: see :func:`solve_with_ranges`.

    Inputs that were always zero are cut out of H and get H_jj = 1: no error reaches them or comes from them, so their
    codes are those of rounding to nearest.

    With ``drift`` D the output of the float model is what is aimed at (GPTAQ, arXiv 2504.02692): see
    :func:`gptaq_target`, whose W' takes the place of W in the column loop, and nowhere else. D = 0 gives the codes of
    plain GPTQ. "Never worse" is then judged by the error against the float model, :func:`output_error` with W D.

    Args:
        weight: float [out, in].
        hessian: H = (2/n) Σ x xᵀ, float64 [in, in].
        grid: What the codes live on; 1 to 8 bits, symmetric or not.
        order: In which order columns are rounded: see :func:`column_order`.
        ladder: Values of λ to try, in units of the mean of diag(H), until the factorization succeeds.
        search: Where scales and zeros come from; fractional zeros (``hqq``) are kept as they are. ``imatrix`` takes
            the diagonal of H as importance.
        memo: Holds the factor for the next layer with the same H; nothing of the drift.
        drift: D = (2/n) Σ (x_fp − x_q) x_qᵀ, float64 [in, in]: x_q are the inputs that H is of, x_fp those that the
            float model gives to the same layer at the same tokens. ``None``: the layer's own output is aimed at.
        alpha: How much of the drift is made up for, 0 to 1.
        overwrite: Whether the storage of ``hessian`` may be used; with drift, a float64 weight or cycles, it is not.
        cycles: Cycles of :func:`descend` on codes and scales behind the column loop, in the damped Hessian.
        largest: The largest magnitude of the matrix that these are rows of; that of ``weight`` where ``None``.
        rows: Who solves it together; all of them call this, and are given the same. One alone where ``None``.
        aimed: What the float model's inputs are multiplied with where that is not ``weight``, float64 [out, in]: these
            are some rows of a matrix, whose others follow with the same Hessian (:func:`solve_two_sided`).

    Raises:
        QuantizationError: The weight holds NaN or infinity, or the shapes do not fit. A Hessian that cannot be used
            is no error: the answer is then rounding to nearest, and ``fallback`` says why.
    """
    if hessian.shape != (weight.shape[-1], weight.shape[-1]) or weight.ndim != 2:
        raise QuantizationError(f"A weight {tuple(weight.shape)} needs a Hessian [in, in], not {tuple(hessian.shape)}.")
    if drift is not None and drift.shape != hessian.shape:
        raise QuantizationError(f"A Hessian {tuple(hessian.shape)} needs a drift alike, not {tuple(drift.shape)}.")
    hessian = hessian.double()
    if (bad := not_finite(Hessian=hessian, drift=drift)) is not None:
        return rounded_without_data(weight, grid, search, largest, bad)
    rows, shape = (rows or SharedRows()).of(weight, grid), weight.shape
    if not rows.alone:
        largest = weight.abs().max() if largest is None else largest
        weight = weight[rows.own(len(weight))]
    rivals = rows.tried(lambda: roundings(weight, grid, search, hessian.diagonal(), largest))
    rounded = rivals[search]
    dead = hessian.diagonal() == 0
    count = int(dead.sum())
    if count == len(dead):
        why = "the Hessian is zero: no input ever reached the layer"
        return Solution(tensor=rows.whole(rounded, shape), dead=count, fallback=why)
    mean = float(hessian.diagonal()[~dead].mean())
    columns = column_order(hessian.diagonal(), grid, order)
    memo = {} if memo is None else memo
    drifted = None if drift is None else (weight.double() if aimed is None else aimed) @ drift.double()
    make_room(hessian.nbytes)
    # The column loop rounds float64 to float32.
    known = drifted is None and weight.dtype != torch.float64 and not cycles
    estimates = [estimated_error(weight, tensor, hessian, rows.total) for tensor in rivals.values()] if known else []
    rival = None if known else least_error(weight, rivals, hessian, drifted, rows.total)
    for damping in ladder:
        key = order, grid.group_width(len(dead)), damping
        if key not in memo:
            memo.clear()  # one factor at a time
            factor = inverse_factor(hessian, damping * mean, columns, overwrite=overwrite and known)
            rank = None if factor is None else effective_rank(factor, damping * mean, dead[columns])
            memo[key] = factor, rank
        factor, rank = memo[key]
        if factor is None:
            continue
        target = weight if drifted is None else gptaq_target(weight, drifted, factor, columns, alpha)
        solved, squares = solve_with_ranges(target, factor, columns, rivals)
        make_room(hessian.nbytes)
        if cycles:
            damped, factors = _for_cycles(hessian, damping * mean, columns, memo if aimed is not None else {})
            solved = descend(target, solved, damped, columns, cycles, factors=factors, scales=search not in OF_GGML)
        if known:
            loss = undamped_error(weight, solved, squares, damping * mean, dead, rows.total)
            if all(estimate.above(loss) for estimate in estimates):
                nearest = min(estimate.error for estimate in estimates)
                tensor = rows.whole(solved, shape)
                return Solution(tensor=tensor, damping=damping, dead=count, loss=loss, rtn_loss=nearest, rank=rank)
            rival = least_undamped(weight, rivals, factor, columns, damping * mean, dead, rows.total)
        else:
            loss = output_error(weight, solved, hessian, drifted, rows.total)
        assert rival is not None
        if not loss < rival[2]:  # otherwise its codes are of no account
            rival = rival[0], rows.whole(rival[1], shape), rival[2]
        return replace(never_worse(rows.whole(solved, shape), loss, rival), damping=damping, dead=count, rank=rank)
    rival = least_error(weight, rivals, hessian, None, rows.total) if rival is None else rival
    reason = f"the Hessian is not positive definite, even damped by {ladder[-1]:g} of its mean diagonal"
    least = finite_or_none(rival[2])
    return Solution(tensor=rows.whole(rival[1], shape), dead=count, fallback=reason, loss=least, rtn_loss=least)


def _for_cycles(
    hessian: Tensor, shift: float, columns: Tensor, memo: dict[Any, Any]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The damped Hessian and its factors for cycles, kept in ``memo`` for further rows."""
    if "cycles" not in memo:
        damped = damped_hessian(hessian, shift)
        memo["cycles"] = damped, sweep_factors(damped, columns)
    found: tuple[Tensor, tuple[Tensor, Tensor]] = memo["cycles"]
    return found


@dataclass(frozen=True, kw_only=True)
class GPTQ(Guided, HessianQuantizer):
    """Round column by column, each making up for the errors of those before it (arXiv 2210.17323).

    Never worse than rounding to nearest at the layer's output, on the inputs it saw: where it would be, or where the
    inputs do not carry it, rounding to nearest is kept and the notes of the edit say so.

    Attributes:
        range_search: Where scales come from, before any column moves: the ``minmax`` of the values, the shrunken
            range of least error (``mse``), or the same with errors weighted by the diagonal of H (``imatrix``); for
            block types of GGUF files the published search, plain or so weighted (``ggml``, ``ggml-imatrix``). A row
            that these clip, and that ends with clearly less error from plain ranges, has those
            (:func:`solve_with_ranges`).
        order: Which columns come first: those of large inputs inside each group and the groups of the largest first
            (``gar``), those of large inputs anywhere (``activation``), or as they are (``natural``). None of them
            costs anything at run time.
        damping: Added to the diagonal of the Hessian, in units of its mean; times ten, up to 1, until it factorizes.
        token_floor: A layer that saw fewer inputs than this fraction of its input features is rounded to nearest.
        experts: What an expert of a mixture is solved on: the tokens ``routed`` to it, or, where these are too few for
            ``token_floor``, those of all; or those of ``all`` always. The router's choice stays as it is.
        gptaq: Aim at the output of the float model, not at that of the float layer on the inputs
            there are (GPTAQ, arXiv 2504.02692): a layer then makes up for errors of those before it.
        alpha: How much of them, 0 to 1; without ``gptaq`` it means nothing.
        cycles: So many times, behind the column loop, codes and scales move in turns (:func:`descend`).
        objective: Of which error the least is looked for: of the ``layer``'s output, its block's ``output``, or the
            ``loss`` at the end, by weights of tokens (GuidedQuant, arXiv 2505.07004).
        output_groups: Into how many parts the rows are taken apart, each with a Hessian of its own.
        mix: How much of the plain Hessian is mixed in, 0 to 1 (:class:`Guide`).
        two_sided: Whether rows make up for each other's errors, too, where the loss does not mind
            (:func:`solve_two_sided`); of ``objective: loss``. All rows have one Hessian then.
    """

    name: ClassVar[str] = "gptq"
    shares_rows: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {**Quantizer.renamed, "asymmetric": "gptaq"}

    cycles: int = 0
    two_sided: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        guide_for(self.objective, self.output_groups, self.mix, self.two_sided)
        if not self.cycles >= 0:
            raise RecipeError(f"cycles is 0 or more, not {self.cycles}.")

    def passes(self, batches: int) -> float:
        """With ``two_sided`` gradients have statistics as well."""
        return super().passes(batches) + (1.5 if self.two_sided else 0.0)

    @property
    def guide(self) -> Guide | None:
        """As ``objective`` says."""
        return guide_for(self.objective, self.output_groups, self.mix, self.two_sided)

    def solve(self, site: Site, weight: Tensor, state: Observers | OutputGroups, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in], with what was found out about it as notes.

        Raises:
            QuantizationError: The weight, or more than 1 % of the inputs, hold NaN or infinity.
        """
        largest = weight.abs().max() if isinstance(state, OutputGroups) else None

        def solve_matrix(matrix: Tensor, observer: InputObserver, keep: bool) -> Solution:
            return self._solve_matrix(matrix, observer, scheme.weight, keep=keep, largest=largest)

        def solve_rows(target: Tensor, aimed: Tensor, observer: InputObserver) -> Solution:
            return self._solve_matrix(target, observer, scheme.weight, keep=True, largest=largest, aimed=aimed)

        if isinstance(state, OutputGroups) and state.across:
            tensor, notes = solve_two_sided(weight, state, solve_rows)
        else:
            tensor, notes = solve_each(weight, state, solve_matrix)
        plain = state.plain if isinstance(state, OutputGroups) else state
        if self.gptaq and not isinstance(plain, CrossCovarianceObserver):
            notes["symmetric"] = "its inputs cannot be paired, token for token, with those of the float model"
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]

    def _solve_matrix(
        self,
        weight: Tensor,
        observer: InputObserver,
        grid: Grid,
        *,
        keep: bool,
        largest: Tensor | None = None,
        aimed: Tensor | None = None,
    ) -> Solution:
        if (few := too_few_inputs(observer, self.token_floor)) is not None:
            return rounded_without_data(weight, grid, self.range_search, largest, few)
        alone = not keep or (observer.last_use and not observer.memo)
        hessian = (observer.take_hessian() if alone else observer.hessian()).to(weight.device)
        drift = None
        if self.gptaq and isinstance(observer, CrossCovarianceObserver):
            drift = observer.cross_covariance().to(weight.device)
        return solve_gptq(
            weight, hessian, grid, order=self.order, ladder=damping_ladder(self.damping), search=self.range_search,
            memo=None if alone else observer.memo, drift=drift, alpha=self.alpha, overwrite=alone, cycles=self.cycles,
            largest=largest, rows=observer.shared, aimed=aimed,
        )  # fmt: skip
