"""What a changed model loses on fixed rows of text, row by row, from the changed block on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from goldstick.core.ranks import Ranks
from goldstick.evaluation.kl import token_kl
from goldstick.jobs.sensitivity.block_runs import BlockRuns

Metric = Literal["perplexity", "kl"]
METRICS: tuple[Metric, ...] = ("kl", "perplexity")


class RowLosses:
    """The float model's predictions on rows of text, and what others lose beside them.

    Args:
        model: The float model.
        batches: Keyword arguments of its forward; rows of one length.
        ranks: Who runs it together, each some of the batches; all of them ask for the same losses.
        right: The predictions, where they are those of another model.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Mapping[str, Tensor]],
        ranks: Ranks | None = None,
        right: Sequence[Tensor] | None = None,
    ) -> None:
        self.batches, self._ranks = batches, ranks or Ranks()
        self._own = [batches[number] for number in self._ranks.share(len(batches))]
        self.runs = BlockRuns(model, self._own, None if self._own else ())
        self.right = list(self.runs.logits() if right is None else right)

    def kl(self) -> list[float]:
        """The mean KL(p ‖ q) per token of each row, p of the float model, q of what it is now."""
        return self._rows(self.runs.logits(), "kl")

    def both(self) -> tuple[list[float], list[float]]:
        """The mean KL of each row, and how much larger its cross-entropy is, of what the model is now."""
        found: list[list[float]] = [[], []]
        for batch, first, second in zip(self._own, self.right, self.runs.logits(), strict=True):
            for place, metric in enumerate(METRICS):
                found[place] += _row_losses(batch, first, second, metric)
        kl, larger = (self._of_all(losses) for losses in found)
        return kl, larger

    def of(self, model: nn.Module, metric: Metric) -> list[float]:
        """What another model loses on each row: KL per token, or how much larger its cross-entropy is, in nats."""
        other: Any = model
        with torch.no_grad():
            return self._rows((other(**batch, use_cache=False).logits for batch in self._own), metric)

    def now(self, metric: Metric) -> list[float]:
        """The same of the model as it is now."""
        return self._rows(self.runs.logits(), metric)

    def _rows(self, tried: Any, metric: Metric) -> list[float]:
        found: list[float] = []
        for batch, first, second in zip(self._own, self.right, tried, strict=True):
            found += _row_losses(batch, first, second, metric)
        return self._of_all(found)

    def _of_all(self, own: list[float]) -> list[float]:
        """The losses of all ranks' rows, in the order of the rows."""
        return [loss for each in self._ranks.gather(own) for loss in each]


def _row_losses(batch: Mapping[str, Tensor], first: Tensor, second: Tensor, metric: Metric) -> list[float]:
    """What each row of a batch loses, by the logits of both models."""
    if metric == "kl":
        losses = token_kl(first, second)
    else:
        labels = batch["input_ids"][:, 1:, None]
        before, after = (
            -torch.log_softmax(one[:, :-1].double(), dim=-1).gather(-1, labels)[..., 0] for one in (first, second)
        )
        losses = after - before
    return [fmean(row) for row in losses.tolist()]
