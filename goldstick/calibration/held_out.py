"""Held out: what a block should give, and the batches that judge it since nothing in it was fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.algorithms.validate import Validate
from goldstick.calibration.batch_rows import count_rows, is_text, rows_of, same_in_parts
from goldstick.calibration.output_metric import OutputMetric
from goldstick.calibration.passes import Passes as GroupPasses
from goldstick.calibration.pauses import CapturedInput
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask
from goldstick.errors import QuantizationError

Runs = Sequence[Callable[[], Tensor]]


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Forward passes of a block, and what they should give.

    Attributes:
        runs: The block's forward on each batch.
        targets: What the float block gives for each batch.
        masks: Which tokens of each batch count.
        ranks: Who has passes of further batches.
        metric: How errors count together; ``None`` where all that the block gives counts alike.
    """

    runs: Runs
    targets: Sequence[Tensor]
    masks: Sequence[TokenMask]
    ranks: Ranks = field(default_factory=Ranks)
    metric: OutputMetric | None = None

    def part(self, part: slice) -> Passes:
        """Some of the batches of this rank."""
        return replace(self, runs=self.runs[part], targets=self.targets[part], masks=self.masks[part])

    def places(self) -> list[tuple[int, int]]:
        """The batches of all ranks in their order: whose each is, and its number there."""
        counts = self.ranks.gather(len(self.runs))
        return [(owner, index) for owner, count in enumerate(counts) for index in range(count)]

    def errors(self, index: int) -> Tensor:
        """(y − y_float)², or what stands for it by the metric, of the tokens of a batch that count, float32."""
        found = self.runs[index]().float() - self.targets[index].float()
        mask = self.masks[index].of(found)
        if mask is not None:
            found = found[mask.bool()]
        return (found if self.metric is None else self.metric(found)).square()

    @torch.no_grad()
    def loss(self) -> float:
        """The mean over all batches of all ranks."""
        sums = [(float(errors.double().sum()), errors.numel()) for errors in map(self.errors, range(len(self.runs)))]
        total, count = 0.0, 0
        for each in self.ranks.gather(sums):  # batch by batch, in one order, whoever has them
            for further, numbers in each:
                total, count = total + further, count + numbers
        return total / count


def split(passes: Passes, stage: Validate | BlockReconstruction) -> tuple[Passes, Passes]:
    """The batches to learn from, and those to judge by: the last; all for both where none are held out.

    Raises:
        QuantizationError: There is one batch; the message names the stage that holds out, and what it can do without.
    """
    if not stage.holdout:
        return passes, passes
    learned = learned_batches(passes.ranks, len(passes.runs), stage)
    return passes.part(slice(0, learned)), passes.part(slice(learned, None))


def learned_batches(ranks: Ranks, own: int, stage: Validate | BlockReconstruction) -> int:
    """How many of a rank's ``own`` batches, the first, are not held out; see :func:`split`."""
    counts = ranks.gather(own)
    total = sum(counts)
    if total < 2:
        raise too_few(stage.name, total, f", or {stage.without_holdout}")
    learned = total - held_count(total, stage.holdout)
    return min(max(0, learned - sum(counts[: ranks.rank])), own)


def too_few(stage: str, total: int, instead: str = "") -> QuantizationError:
    """The error of a stage that holds batches out, where there are not two; and what else can be done."""
    return QuantizationError(
        f"{stage} is judged by calibration batches that nothing was fitted to, and there is {total} batch, "
        f"which cannot be taken apart; give at least 2 (more samples){instead}."
    )


def held_count(total: int, share: float) -> int:
    """How many of ``total`` are held out: at least one, and never all."""
    return min(max(1, round(share * total)), total - 1)


def apart(
    batches: Sequence[Mapping[str, Any]], share: float, model: nn.Module | None = None
) -> Sequence[Mapping[str, Any]]:
    """The batches; a single one of several rows as two, so that there is one to hold out.

    Args:
        batches: Keyword arguments of the model's forward.
        share: Which share of them is held out.
        model: Shows whether what is no text is made of rows: in parts it has to give the same. ``None`` where batches
            are known to be.
    """
    if not share or len(batches) != 1 or (count := count_rows(batches[0])) < 2:
        return batches
    cut = count - held_count(count, share)
    parts = [rows_of(batches[0], part) for part in (slice(0, cut), slice(cut, None))]
    surely = model is None or is_text(batches[0]) or same_in_parts(model, batches[0], parts)
    return parts if surely else batches


class LearnedPasses:
    """The passes of a block as far as they are learned from: the inputs of the last batches are not shown.

    Args:
        passes: All passes.
        count: How many batches of this rank are learned from.
    """

    def __init__(self, passes: GroupPasses, count: int) -> None:
        self._passes, self._count = passes, count
        self.ranks = passes.ranks

    @property
    def together(self) -> bool:
        """As the passes."""
        return self._passes.together

    def groups(self) -> Iterator[int]:
        """As the passes."""
        return self._passes.groups()

    def captured_inputs(self) -> Iterator[CapturedInput]:
        """Those of the batches that are learned from."""
        return (captured for captured in self._passes.captured_inputs() if captured.batch < self._count)

    def again(self) -> None:
        """As the passes."""
        self._passes.again()

    def outputs(self) -> Iterator[Tensor]:
        """As the passes."""
        return self._passes.outputs()
