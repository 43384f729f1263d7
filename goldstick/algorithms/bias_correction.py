"""Bias correction: what rounding a layer's weight adds to its output on average is taken off its bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from goldstick.algorithms.stage import BiasCorrector
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import Targets


@dataclass(frozen=True, kw_only=True)
class BiasCorrection(BiasCorrector):
    """Bias correction on data (arXiv 1906.04721, section 4.2): b ← b + E[W·x] − E[Ŵ·x], layer after layer.

    The means are those of the calibration data, as they arrive from the layers rounded before. It pays where a channel
    has few weights, whose errors do not even out, as in depthwise convolutions. A layer without a bias has nothing to
    correct and says so; ``fold_batch_norm`` gives convolutions one.

    Attributes:
        targets: Which layers, of those that are rounded.
    """

    name: ClassVar[str] = "correct_bias"

    targets: Targets = field(default_factory=Targets)

    def sites(self, network: Network) -> Sequence[Site]:
        """The targeted sites of torch's own layers."""
        return [site for site in self.targets.select(network) if site.torchs]
