"""Coordinate descent from rounding to nearest: a search of codes and scales that can be stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from goldstick.algorithms.column_importance import OF_GGML
from goldstick.algorithms.coordinate_descent import damped_hessian, descend
from goldstick.algorithms.gptaq import gptaq_target
from goldstick.algorithms.hessian_factor import Order, column_order, damping_ladder, inverse_factor
from goldstick.algorithms.hessian_quantizer import HessianQuantizer
from goldstick.algorithms.observers import Observers
from goldstick.algorithms.output_error import least_error, output_error
from goldstick.algorithms.ranges import RangeSearch
from goldstick.algorithms.roundings import not_finite, rounded_without_data, roundings, too_few_inputs
from goldstick.algorithms.solution import Solution, effective_rank, never_worse, solve_each
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.edits import Edit, Quantize
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Site


def solve_descent(
    weight: Tensor,
    hessian: Tensor,
    grid: Grid,
    *,
    cycles: int = 8,
    order: Order = "gar",
    ladder: Sequence[float] = (0.01, 0.1, 1.0),
    search: RangeSearch = "mse",
    drift: Tensor | None = None,
    alpha: float = 1.0,
) -> Solution:
    """Quantize ``weight`` so that tr((W − Ŵ) A (W − Ŵ)ᵀ) falls from that of rounding, A = H + λ·mean(diag H)·I.

    Of rounding with searched and with plain ranges the one of less error is where :func:`descend` begins. Each of its
    steps is the exact minimum in one code or one scale, so that no cycle raises the error of any output.

    Args:
        weight: float [out, in].
        hessian: H = (2/n) Σ x xᵀ, float64 [in, in].
        grid: What the codes live on.
        cycles: How many cycles at most; none is made after one that moved nothing.
        order: In which order a cycle takes the columns: see :func:`column_order`.
        ladder: Values of λ to try, in units of the mean of diag(H), until A is positive definite.
        search: Where the first scales and zeros come from.
        drift: D of the inputs, float64 [in, in], as in :func:`solve_gptq`: W' takes the place of W, and errors are
            judged against the float model's output.
        alpha: How much of the drift is made up for, 0 to 1.

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
        return rounded_without_data(weight, grid, search, None, bad)
    rivals = roundings(weight, grid, search, hessian.diagonal())
    dead = hessian.diagonal() == 0
    count = int(dead.sum())
    if count == len(dead):
        why = "the Hessian is zero: no input ever reached the layer"
        return Solution(tensor=rivals[search], dead=count, fallback=why)
    mean = float(hessian.diagonal()[~dead].mean())
    columns = column_order(hessian.diagonal(), grid, order)
    drifted = None if drift is None else weight.double() @ drift.double()
    for damping in ladder:
        factor = inverse_factor(hessian, damping * mean, columns)
        if factor is None:
            continue
        rival = least_error(weight, rivals, hessian, drifted)
        target = weight if drifted is None else gptaq_target(weight, drifted, factor, columns, alpha)
        rank = effective_rank(factor, damping * mean, dead[columns])
        del factor
        damped = damped_hessian(hessian, damping * mean)
        solved = descend(target, rival[1], damped, columns, cycles, scales=search not in OF_GGML)
        loss = output_error(weight, solved, hessian, drifted)
        return replace(never_worse(solved, loss, rival), damping=damping, dead=count, rank=rank)
    reason = f"the Hessian is not positive definite, even damped by {ladder[-1]:g} of its mean diagonal"
    return Solution(tensor=rivals[search], dead=count, fallback=reason)


@dataclass(frozen=True, kw_only=True)
class Descent(HessianQuantizer):
    """Search codes and scales by coordinate descent on the error of the layer's output, from rounding to nearest.

    Cyclic, as QuantEase (arXiv 2309.01885); codes and scales in turns, as LNQ (arXiv 2505.07004). Never worse than
    rounding to nearest at the layer's output, on the inputs it saw.

    Attributes:
        range_search: Where the first scales come from: the ``minmax`` of the values, the shrunken range of least error
            (``mse``), or the same with errors weighted by the diagonal of H (``imatrix``); for block types of GGUF
            files, whose scales then stay, the published search, plain or so weighted (``ggml``, ``ggml-imatrix``).
        cycles: How many cycles at most; it ends before, where nothing moves any more.
        order: In which order a cycle takes the columns, as in GPTQ.
        damping: Added to the diagonal of the Hessian, in units of its mean; times ten, up to 1, until it is positive
            definite.
        token_floor: A layer that saw fewer inputs than this fraction of its input features is rounded to nearest.
        experts: What an expert of a mixture is solved on, as in GPTQ: ``routed`` or ``all``.
        gptaq: Aim at the output of the float model, as in GPTQ: a layer then makes up for the rounding of its inputs
            and for errors of those before it, as far as its weights can.
        alpha: How much of them, 0 to 1; without ``gptaq`` it means nothing.
    """

    name: ClassVar[str] = "descent"

    cycles: int = 8
    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cycles < 1:
            raise RecipeError(f"cycles is 1 or more, not {self.cycles}.")

    def solve(self, site: Site, weight: Tensor, state: Observers, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in], with what was found out about it as notes.

        Raises:
            QuantizationError: The weight, or more than 1 % of the inputs, hold NaN or infinity.
        """

        def solve_matrix(matrix: Tensor, observer: InputObserver, keep: bool) -> Solution:
            if (few := too_few_inputs(observer, self.token_floor)) is not None:
                return rounded_without_data(matrix, scheme.weight, self.range_search, None, few)
            alone = not keep or (observer.last_use and not observer.memo)
            hessian = (observer.take_hessian() if alone else observer.hessian()).to(matrix.device)
            drift = None
            if self.gptaq and isinstance(observer, CrossCovarianceObserver):
                drift = observer.cross_covariance().to(matrix.device)
            return solve_descent(
                matrix, hessian, scheme.weight, cycles=self.cycles, order=self.order,
                ladder=damping_ladder(self.damping), search=self.range_search, drift=drift, alpha=self.alpha,
            )  # fmt: skip

        tensor, notes = solve_each(weight, state, solve_matrix)
        if self.gptaq and not isinstance(state, CrossCovarianceObserver):
            notes["symmetric"] = "its inputs cannot be paired, token for token, with those of the float model"
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]
