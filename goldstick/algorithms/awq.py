"""AWQ: protect the weights that large activations read, by scaling them up before they are rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from goldstick.algorithms.base import DataRequirement, Guide, Member, Smoother, SmoothScale
from goldstick.algorithms.clipping import best_rows, clipped
from goldstick.algorithms.guided import Guided
from goldstick.algorithms.observers import Observers, observers_for
from goldstick.algorithms.output_error import output_error
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.smooth_scale import Candidate, Ranges, SmoothLoss, bounded, least_loss
from goldstick.algorithms.solution import Solution, finite_or_none, solve_each
from goldstick.core.counts import counted
from goldstick.core.edits import Edit, Quantize
from goldstick.core.grid import Grid
from goldstick.core.inputs import SAMPLE, InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.qtensor import in_groups
from goldstick.core.rows import row_chunks
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Site

_LEAST = 1e-4
_WHOLE = 1 << 30  # importances are summed as whole numbers, so that the order of rows does not matter


def awq_scale(activation: Tensor, weight: Tensor, ratio: float, *, duo: bool) -> Tensor:
    """s = x̄^r, or with ``duo`` x̄^r / (w̄^(1−r) + 1e-4), at least 1e-4, divided by √(max s · min s); float32 [in].

    The search space of AWQ (arXiv 2306.00978, equation 5), and that of its implementation, which also makes room for
    channels whose weights are small. A channel that is always zero, or that no weight reads, keeps s = 1 and has no
    part in the maximum and minimum; so has what is NaN or infinite. All within [1e-4, 1e4].

    Args:
        activation: x̄ = mean|xⱼ|, float64 [in].
        weight: w̄, from :func:`weight_importance`, float64 [in].
        ratio: r, 0 to 1.
        duo: Whether the weights count.
    """
    live = (activation > 0) & (weight > 0)
    scale = activation.pow(ratio)
    if duo:
        scale = scale / (weight.pow(1 - ratio) + _LEAST)
    scale = scale.clamp(min=_LEAST)
    if live.any():
        scale = scale / (scale[live].max() * scale[live].min()).sqrt()
    return bounded(scale, live)


def weight_importance(members: Sequence[Member]) -> Tensor:
    """w̄ⱼ: the mean over all rows of all members of |w_ij| / max|w| over its group, float64 [in]."""
    total = torch.zeros(members[0].weight.shape[-1], dtype=torch.int64)
    for member in members:
        for part in row_chunks(member.weight, copies=4):
            grouped = in_groups(member.weight[part].float().abs(), member.scheme.weight)  # [rows, groups, width]
            largest = grouped.amax(-1, keepdim=True)
            share = torch.where(largest > 0, grouped / largest, 0).flatten(-2).double()
            total += (share * _WHOLE).round_().long().sum(0)[: len(total)].cpu()
    return total.double() / (_WHOLE * sum(len(member.weight) for member in members))


def solve_awq(
    weight: Tensor, hessian: Tensor, rows: Tensor, grid: Grid, *, clip: bool = True, largest: Tensor | None = None
) -> Solution:
    """Round a weight whose scales are already folded: each row with clipped, min-max or mse ranges, whichever serves.

    Never worse at the output than rounding to nearest with min-max or with mse ranges, for any row.

    Args:
        weight: float [out, in].
        hessian: H, float64 [in, in].
        rows: Sampled inputs, float [k, in].
        grid: What the codes live on.
        clip: Whether to try clipped ranges.
        largest: As in :func:`quantize_with_search`.

    Raises:
        QuantizationError: The weight holds NaN or infinity.
    """
    plain = [
        quantize_with_search(weight, grid, "minmax", largest=largest),
        quantize_with_search(weight, grid, "mse", largest=largest),
    ]
    dead = int((hessian.diagonal() == 0).sum())
    if dead == len(hessian):
        reason = "the Hessian is zero: no input ever reached the layer"
        return Solution(tensor=plain[1], damping=None, dead=dead, fallback=reason)
    rtn_loss = min(output_error(weight, rival, hessian) for rival in plain)
    rivals = [*plain, clipped(weight, hessian, rows, grid, largest)] if clip else plain
    tensor, chosen = best_rows(weight, rivals, hessian)
    return Solution(
        tensor=tensor,
        damping=None,
        fallback="clipping lowers the error of no output" if clip and not (chosen == len(plain)).any() else None,
        dead=dead,
        loss=finite_or_none(output_error(weight, tensor, hessian)),
        rtn_loss=finite_or_none(rtn_loss),
    )


@dataclass(frozen=True, kw_only=True)
class AWQ(Smoother, Guided):
    """Scale the weights that large activations read before rounding them, then clip (arXiv 2306.00978).

    A group of layers that read the same inputs gets a scale for each channel: inputs are divided by it, weights
    multiplied. It is used only where it lowers the simulated output error of the group: of rounding, or, where GPTQ
    rounds later, of what its compensation leaves (:class:`SmoothLoss`).

    Attributes:
        duo_scaling: Whether the size of the weights has a part in the scales, too; ``both`` tries each ratio with and
            without, which takes twice the time.
        grid: How many steps the search takes from the ratio 0 to 1.
        clip: Whether ranges may be shrunken, each group for itself, where that lowers the error of the output.
        quantize: ``false`` chooses scales only and leaves the rounding to a later stage, such as ``gptq``, which also
            has the scheme.
        ranges: What weights are rounded with while scales are compared: the ``minmax`` of their values as in the
            paper, or shrunken ranges (``clip``), as clipping finds them later, or GPTQ where that rounds. A scale that
            only makes up for ranges too wide is then not preferred.
        token_floor: Layers that saw fewer inputs than this fraction of their input features are rounded to nearest, and
            get no scale.
        unfoldable: What to do where nothing can absorb a scale; see :class:`Smoother`.
        objective: Of which error scales are to leave the least: of the group's outputs (``layer``), its block's
            ``output``, or the ``loss`` at the end, by weights of tokens (arXiv 2505.07004). Ranges are chosen by the
            same, but for ``loss`` by the error of the layer's own output.
        output_groups: Into how many parts the outputs of each layer are taken apart, each with weights of its own.
        mix: How much of the plain error is mixed in, 0 to 1 (:class:`Guide`).
    """

    name: ClassVar[str] = "awq"
    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE

    duo_scaling: bool | Literal["both"] = True
    grid: int = 20
    clip: bool = True
    quantize: bool = True
    ranges: Ranges = "clip"
    token_floor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.grid >= 1:
            raise RecipeError(f"grid is how many steps the search takes, 1 or more, not {self.grid}.")
        if not self.token_floor >= 0:
            raise RecipeError(f"token_floor is a fraction of the input features, 0 or more, not {self.token_floor}.")
        if not self.quantize and (self.overrides or self.scheme != AWQ.scheme):
            raise RecipeError(
                "awq with quantize: false rounds nothing, so its scheme would mean nothing; give scheme and overrides "
                "to the stage that rounds."
            )

    @property
    def quantizes(self) -> bool:
        """What ``quantize`` says."""
        return self.quantize

    @property
    def guide(self) -> Guide | None:
        """As ``objective`` says, but for the ``loss``, which is a worse guide to ranges than the layer's own error."""
        return self.scale_guide if self.objective == "output" else None

    @property
    def scale_guide(self) -> Guide | None:
        """As ``objective`` says."""
        return super().guide

    def smooth_scale(self, members: Sequence[Member], observer: InputObserver) -> SmoothScale:
        """The scale of least simulated output error, where that is below the error without one.

        Raises:
            QuantizationError: A weight, or more than 1 % of the inputs, hold NaN or infinity.
        """
        if reason := self._too_few(observer):
            return SmoothScale(scale=None, notes={"unbalanced": reason})
        loss = SmoothLoss(members, observer, self.ranges)
        found = least_loss(loss, self._candidates(observer.mean_abs(), weight_importance(members)))
        if self.scale_guide is None:
            return found
        return replace(found, notes={**found.notes, "objective": self.objective if loss.weighted else Guide.unknown})

    def _candidates(self, activation: Tensor, weight: Tensor) -> Iterator[Candidate]:
        for step in range(self.grid + 1):
            ratio = step / self.grid
            for duo in (False, True) if self.duo_scaling == "both" else (self.duo_scaling,):
                if duo or step:  # x̄^0 is the group as it is
                    notes: dict[str, float | str] = {"ratio": ratio, "duo_scaling": "yes" if duo else "no"}
                    yield notes, awq_scale(activation, weight, ratio, duo=duo)

    def _too_few(self, observer: InputObserver) -> str | None:
        observer.refuse_too_many_dropped()  # few inputs are left then, too, and that is not the reason
        if not observer.tokens:
            return "no input ever reached the layers"
        if observer.tokens < self.token_floor * observer.in_features:
            return (
                f"{counted(observer.tokens, 'input')} seen, fewer than {self.token_floor:g} of {observer.in_features}"
            )
        return None

    @property
    def statistics(self) -> tuple[str, ...]:
        """The Hessian and a sample."""
        return "hessian", "sample"

    def attach(self, site: Site) -> InputObserver | list[InputObserver]:
        """The statistic of the site's inputs; for experts a list of them, one each."""
        return observers_for(site)

    def solve(self, site: Site, weight: Tensor, state: Observers | OutputGroups, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in] that was already scaled, with notes.

        Raises:
            QuantizationError: The weight, or more than 1 % of the inputs, hold NaN or infinity.
        """

        largest = weight.abs().max() if isinstance(state, OutputGroups) else None

        def solve_matrix(matrix: Tensor, observer: InputObserver, keep: bool) -> Solution:
            if reason := self._too_few(observer):
                rounded = quantize_with_search(matrix, scheme.weight, "mse", largest=largest)
                return Solution(tensor=rounded, damping=None, fallback=reason)
            hessian = (observer.hessian() if keep else observer.take_hessian()).to(matrix.device)
            sample = observer.sample(SAMPLE)
            return solve_awq(matrix, hessian, sample, scheme.weight, clip=self.clip, largest=largest)

        tensor, notes = solve_each(weight, state, solve_matrix, self.statistics)
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]
