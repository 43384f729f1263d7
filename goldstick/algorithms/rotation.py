"""Rotation: turn the residual, the heads and inputs by Hadamard matrices, so that no channel stands out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from goldstick.algorithms.stage import Rotation
from goldstick.core.edits import Rotate
from goldstick.core.input_rotation import LARGEST_TRANSFORM, SMALLEST_TRANSFORM
from goldstick.core.seed import check_seed
from goldstick.errors import RecipeError
from goldstick.structure.network import Network
from goldstick.structure.rotation.plan import RotationPlan
from goldstick.structure.rotation.search import find_rotation


@dataclass(frozen=True, kw_only=True)
class RandomRotation(Rotation):
    """QuaRot's rotation of the weights (arXiv 2404.00456) and, where asked for, of inputs at run time; needs no data.

    With h' = h·Q on the residual and v' = v·Q₂ in every head, the model computes what it did before. A channel that was
    far larger than the others is spread over all of them, so that weights and activations round better. What has to
    be turned is found by trying and proven in float64; a model for which the proof fails is refused.

    Attributes:
        seed: Seed of the random signs.
        residual: Whether to turn the residual (R1).
        heads: Whether to turn the heads between values and output projection (R2), where they can be.
        online: Whether linear layers that write to the residual (down and output projections), if the recipe quantizes
            them, turn what they are given by a Hadamard transform at run time (R4).
        block_size: The most channels that are mixed with each other, a power of two: 32 lets each turn stay within the
            groups of MXFP4. As many as there are where ``None``.
    """

    name: ClassVar[str] = "rotate"

    residual: bool = True
    heads: bool = True
    online: bool = False
    block_size: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not (self.residual or self.heads or self.online):
            raise RecipeError(
                "rotate turns nothing with residual: false, heads: false and online: false; leave the stage out."
            )
        size = self.block_size
        if size is not None and (size < SMALLEST_TRANSFORM or size > LARGEST_TRANSFORM or size & (size - 1)):
            raise RecipeError(
                f"rotate: block_size is a power of two from {SMALLEST_TRANSFORM} to {LARGEST_TRANSFORM}, not {size}; "
                "32 fits the groups of MXFP4."
            )

    def find(self, network: Network, inputs: Mapping[str, Any]) -> RotationPlan:
        """What is to be turned in ``network``, proven; ``inputs`` are some keyword arguments of its forward.

        Raises:
            StructureError: The model cannot be rotated; the message says why.
        """
        parts = {"residual": self.residual, "heads": self.heads, "online": self.online}
        return find_rotation(network, inputs, **parts, block_size=self.block_size, seed=self.seed)

    def edits(self, plan: RotationPlan) -> Iterator[Rotate]:
        """The edits: first what lies outside the blocks, then block after block."""
        return plan.edits(self.seed)
