"""Rotation: turn the residual and the heads by random Hadamard matrices, so that no channel stands out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from goldstick.algorithms.stage import Rotation
from goldstick.core.edits import Rotate
from goldstick.core.seed import check_seed
from goldstick.errors import RecipeError
from goldstick.structure.network import Network
from goldstick.structure.rotation.plan import RotationPlan
from goldstick.structure.rotation.search import find_rotation


@dataclass(frozen=True, kw_only=True)
class RandomRotation(Rotation):
    """QuaRot's rotation of the weights (arXiv 2404.00456), without its online transforms; needs no data.

    With h' = h·Q on the residual and v' = v·Q₂ in every head, the model computes what it did before. A channel that was
    far larger than the others is spread over all of them, so that weights and activations round better. What has to
    be turned is found by trying and proven in float64; a model for which the proof fails is refused.

    Attributes:
        seed: Seed of the random signs.
        residual: Whether to turn the residual (R1).
        heads: Whether to turn the heads between values and output projection (R2), where they can be.
    """

    name: ClassVar[str] = "rotate"

    residual: bool = True
    heads: bool = True

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not (self.residual or self.heads):
            raise RecipeError("rotate turns nothing with residual: false and heads: false; leave the stage out.")

    def find(self, network: Network, inputs: Mapping[str, Any]) -> RotationPlan:
        """What is to be turned in ``network``, proven; ``inputs`` are some keyword arguments of its forward.

        Raises:
            StructureError: The model cannot be rotated; the message says why.
        """
        return find_rotation(network, inputs, residual=self.residual, heads=self.heads, seed=self.seed)

    def edits(self, plan: RotationPlan) -> Iterator[Rotate]:
        """The edits: first what lies outside the blocks, then block after block."""
        return plan.edits(self.seed)
