"""Guided: what quantizers have in common that can be told of which error to look for the least."""

from __future__ import annotations

from dataclasses import dataclass

from goldstick.algorithms.base import Quantizer
from goldstick.algorithms.guide import Guide, Objective, guide_for


@dataclass(frozen=True, kw_only=True)
class Guided(Quantizer):
    """A quantizer that looks for the least error of each layer's own output, or of something behind it.

    Where that is known of a layer, it solves :class:`OutputGroups`: each part of the outputs by inputs that count,
    token by token, what an error there costs (GuidedQuant, arXiv 2505.07004).

    Attributes:
        objective: Of which error the least is looked for: of the ``layer``'s output, its block's ``output``, or the
            ``loss`` at the end.
        output_groups: Into how many parts the rows are taken apart, each with statistics of its own.
        mix: How much of the plain statistics is mixed in, 0 to 1 (:class:`Guide`).
    """

    objective: Objective = "layer"
    output_groups: int = 4
    mix: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        guide_for(self.objective, self.output_groups, self.mix)

    def passes(self, batches: int) -> float:
        """Behind the layer, a block is gone through and back, and each layer has statistics of its own; for the loss
        the whole network is gone through and back before.
        """
        return super().passes(batches) + {"layer": 0.0, "output": 5.0, "loss": 9.0}[self.objective]

    @property
    def guide(self) -> Guide | None:
        """As ``objective`` says."""
        return guide_for(self.objective, self.output_groups, self.mix)
