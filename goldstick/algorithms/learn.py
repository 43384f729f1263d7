"""Learned rounding: a block's codes and scales learn together what the float block gives, on any grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from goldstick.algorithms.block_reconstruction import AnnealedSearch, CodeSearch
from goldstick.algorithms.guide import Guide
from goldstick.algorithms.soft_assignment import MeanOfThree, likeliest
from goldstick.core.grid import Grid
from goldstick.core.learned_scale import LearnedScale
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import RecipeError

#: Logits at the start are −2·d², d the distance from a level; see :mod:`goldstick.algorithms.soft_assignment`.
_SHARPNESS = 2.0
#: How far from its level a weight may lie at the start, in distances between levels, so that it is the likeliest one.
_NEAREST = 0.45
#: Logit of a level that the grid does not have.
_NEVER = -1e4


class LevelSearch(nn.Module, CodeSearch):
    """A weight assigned softly to the level of its code and to the levels next to it, whatever their distances.

    W = s·Σ_k P_k·v[c − 1 + k] − shift, k = 0, 1, 2, with v the levels of the grid in ascending order, c the place of
    the start's code among them and P = softmax(T·A) while T is finite; the likeliest level otherwise. A = −2·(d + 1 −
    k)² at the start, where d says how far the float weight lies from level c, in distances between levels, but no
    further than 0.45: so the start's codes are the likeliest. s = s₀·exp(δ) is rounded to what can be stored, where
    scales are floats or FP8; powers of two and the whole numbers of superblocks stay what they are.

    Args:
        tensor: The start.
        weight: The float weight it stands for, [out, in].
        options: The stage.
    """

    def __init__(self, tensor: QuantizedTensor, weight: Tensor, options: Learn) -> None:
        super().__init__()
        self.start, self.options = tensor, options
        self.levels, self.codes_of = _levels(tensor.grid, tensor.codes.device)
        place = _places(tensor, self.levels)
        self.gaps = self.levels.diff()
        self.place = place.to(torch.int16)
        steps = tensor.steps().float()
        level, above, below = self._beside()
        ratio = (weight.float() + self._shift(steps)) / self._spread(steps) - level  # no step: NaN or inf
        beside = torch.where(ratio > 0, ratio / above, ratio / below).nan_to_num_(0, 0, 0).clamp_(-_NEAREST, _NEAREST)
        offsets = torch.tensor([-1, 0, 1], device=place.device).reshape(-1, 1, 1)
        there = (place + offsets >= 0) & (place + offsets < len(self.levels))
        self.logits = nn.Parameter(torch.where(there, -_SHARPNESS * (beside - offsets).square(), _NEVER))
        self.scale = LearnedScale(tensor, learns=options.rate > 0)
        self.temperature = 1.0

    def anneal(self, progress: float) -> None:
        """T = 1 first, then rising to its highest in equal ratios, then infinite."""
        options = self.options
        share = (progress - options.anneal_from) / (options.harden_at - options.anneal_from)
        self.temperature = math.inf if share >= 1 else options.temperature ** max(0.0, share)

    def groups(self) -> list[tuple[nn.Parameter, float]]:
        """The logits, and the scales where they can be moved."""
        scales = [(self.scale.log_scale, self.options.rate)] if self.scale.learns else []
        return [(self.logits, self.options.logits_rate), *scales]

    def weight(self) -> Tensor:
        """W, [out, in], in the dtype of the scales."""
        if math.isfinite(self.temperature):
            value: Tensor = MeanOfThree.apply(self.logits, self.temperature, self._beside)  # type: ignore[no-untyped-call]
        else:
            value = self._level(self._moved())
        steps = self._steps(self.scale())
        return (value * self._spread(steps) - self._shift(steps)).to(self.start.scale.dtype)

    def decision(self) -> QuantizedTensor:
        """The codes of the likeliest levels, with the scale as it is stored."""
        moved = self._moved()
        codes = torch.where(moved == self.place, self.start.codes, self.codes_of[moved])  # of −0 and 0 the start's
        return replace(self.start, codes=codes, scale=self.scale.settled())

    def _moved(self) -> Tensor:
        return self.place.long() + likeliest(self.logits) - 1

    def _beside(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        """The levels of the start's codes, and how far from them the next ones lie above and below."""
        place = self.place[rows]
        level = self._level(place)
        if self.start.grid.integers:
            even = level.new_ones(1)
            return level, even, even
        place = place.long()
        return level, self.gaps[place.clamp(max=len(self.gaps) - 1)], self.gaps[(place - 1).clamp(min=0)]

    def _level(self, place: Tensor) -> Tensor:
        return place.float() if self.start.grid.integers else self.levels[place.long()]

    def _steps(self, scale: Tensor) -> Tensor:
        """What levels are multiplied by."""
        if self.start.global_scale is None:
            return scale
        if self.start.grid.superblock is not None:
            return self.start.steps().float()
        return scale / self.start.global_scale

    def _shift(self, steps: Tensor) -> Tensor:
        """What is subtracted behind the product, for each weight."""
        grid = self.start.grid
        if grid.minimums:
            minimums = self.start.shifts()
            assert minimums is not None
            return self._spread(minimums.float())
        if self.start.zero is not None:
            return self._spread(steps * self.start.zero.float())
        return self._spread(steps) * (float(grid.midpoint) if grid.integers else 0.0)

    def _spread(self, values: Tensor) -> Tensor:
        if values.shape[-1] == 1:
            return values
        width = self.start.grid.group_width(self.start.in_features)
        return values.repeat_interleave(width, dim=-1)[..., : self.start.in_features]


def _levels(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """What codes stand for in ascending order, float32 [levels], and a code for each, uint8; without the zero."""
    element = grid.float_element
    if element is None:
        codes = torch.arange(grid.code_max + 1, device=device)
        return codes.float(), codes.to(torch.uint8)
    table = element.table(device)
    codes = torch.arange(len(table), device=device)[torch.isfinite(table)]
    codes = codes[table[codes].argsort(stable=True)]
    new = torch.cat([torch.ones(1, dtype=torch.bool, device=device), table[codes].diff() > 0])
    return table[codes][new], codes[new].to(torch.uint8)


def _places(tensor: QuantizedTensor, levels: Tensor) -> Tensor:
    """Where the values of codes stand among the levels, int64 [out, in]."""
    element = tensor.grid.float_element
    if element is None:
        return tensor.codes.long()
    return torch.searchsorted(levels, element.numbers(tensor.codes).contiguous())


@dataclass(frozen=True, kw_only=True)
class Learn(AnnealedSearch):
    """Learn the rounding of a block's weights and their scales, from the codes of the stages before, on any grid.

    Block by block: every weight is assigned softly to its level and the two next to it (in the manner of GSQ and of
    arXiv 2009.08695), the assignments are sharpened while the block learns to give what the float block gives on the
    float model's inputs, and the likeliest levels stay. Scales learn with them, where they can be stored as they come
    out. What is found is judged on calibration batches that the block has not learned from, several times, and the best
    is kept: the start, where nothing is better.

    Attributes:
        steps: Optimizer steps for each block.
        rate: The learning rate of the scales' logarithms at its highest; 0 leaves scales as they are.
        logits_rate: That of the logits.
        temperature: The highest T.
        anneal_from: Share of the steps after which T rises.
        harden_at: Share of the steps after which weights are one-hot and scales alone learn.
        batches: Calibration batches of a step.
        holdout: Share of the calibration batches, the last, that a block does not learn from and is judged by.
        seed: Seed of the order of the batches.
        objective: Of which error the least is looked for: that of the block's ``output``, all of it alike, or what it
            makes of the ``loss`` at the end, by the gradients there of what the block gives.
        mix: With ``loss``, how much of the plain error is mixed in, 0 to 1.
    """

    name: ClassVar[str] = "learn"
    judgements: ClassVar[int] = 5
    survives: ClassVar[bool] = True
    any_grid: ClassVar[bool] = True

    holdout: float = 0.125
    objective: Literal["output", "loss"] = "output"
    mix: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in ("output", "loss"):
            raise RecipeError(f"The objective of learn is output or loss, not {self.objective!r}.")
        Guide(objective=self.objective, mix=self.mix)

    @property
    def guide(self) -> Guide | None:
        """As ``objective`` says."""
        return Guide(objective="loss", mix=self.mix) if self.objective == "loss" else None

    def search(self, tensor: QuantizedTensor, weight: Tensor) -> LevelSearch:
        """The search around the codes of a weight."""
        return LevelSearch(tensor, weight, self)
