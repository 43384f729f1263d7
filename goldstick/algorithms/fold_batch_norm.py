"""Fold batch norm: convolutions take over the batch norms behind them, before anything is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from goldstick.algorithms.stage import Place, Rewriter
from goldstick.core.edits import FoldNorm
from goldstick.structure.network import Network
from goldstick.structure.norm_folding import find_norm_folds
from goldstick.structure.targets import Targets


@dataclass(frozen=True, kw_only=True)
class FoldBatchNorm(Rewriter):
    """Folds batch norms into the convolutions before them (arXiv 1712.05877, section 3.2), for networks in memory.

    The network computes what it did before, with a layer less for each, and what is rounded afterwards is what the
    network really multiplies with. Which norms can be folded is found by running the network on a batch, and proven in
    float64.

    Attributes:
        targets: Which convolutions.
    """

    name: ClassVar[str] = "fold_batch_norm"
    place: ClassVar[Place] = Place.FIRST
    nothing: ClassVar[str] = "No batch norm of this {} follows a convolution that nothing else reads"

    targets: Targets = field(default_factory=Targets)

    def find(self, model: nn.Module, inputs: Mapping[str, Any]) -> list[FoldNorm]:
        """The edits; ``inputs`` are some keyword arguments of the model's forward."""
        meant = {site.module for site in self.targets.select(Network(model))}
        return [fold for fold in find_norm_folds(model, inputs) if fold.convolution in meant]
