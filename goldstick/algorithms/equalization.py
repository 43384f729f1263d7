"""Cross-layer equalization: neighbouring convolutions share the size of the channels between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from goldstick.algorithms.stage import Rewriter
from goldstick.core.edits import Fold
from goldstick.errors import RecipeError
from goldstick.structure.homogeneous_pairs import Pair, find_homogeneous_pairs

_SETTLED = 1e-3


@dataclass(frozen=True, kw_only=True)
class CrossLayerEqualization(Rewriter):
    """Cross-layer equalization (arXiv 1906.04721, section 4.1), for networks in memory.

    Of two convolutions with nothing but a ReLU between them, channel i of the first is divided by sᵢ and the columns of
    the second that read it are multiplied by it, with sᵢ = √(r₁ᵢ / r₂ᵢ), so that both reach the same largest weight,
    √(r₁ᵢ·r₂ᵢ). Pairs are gone through again until nothing moves. The network computes what it did before, which is
    proven in float64. Batch norms in between are folded first (``fold_batch_norm``); a ReLU6 is not homogeneous and
    parts them.

    Attributes:
        rounds: How often the pairs are gone through at most.
    """

    name: ClassVar[str] = "equalize"
    nothing: ClassVar[str] = "No two convolutions of this {} follow one another with nothing but a ReLU between"

    rounds: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= 1000:
            raise RecipeError(f"equalize goes through the pairs 1 to 1000 times, not {self.rounds}.")

    def find(self, model: nn.Module, inputs: Mapping[str, Any]) -> list[Fold]:
        """The edits; ``inputs`` are some keyword arguments of the model's forward."""
        pairs = find_homogeneous_pairs(model, inputs)
        sizes = {
            path: _sizes(model.get_submodule(path))
            for path in {path for pair in pairs for path in (pair.first, pair.second)}
        }
        scales = equalized(pairs, sizes, self.rounds)
        return [
            Fold(producer=pair.first, consumers=(pair.second,), scale=scale.float())
            for pair, scale in zip(pairs, scales, strict=True)
        ]


def equalized(pairs: Sequence[Pair], sizes: Mapping[str, Tensor], rounds: int) -> list[Tensor]:
    """The scale s of each pair, float64 [channels].

    Args:
        pairs: The pairs.
        sizes: Path of a convolution → |W| [groups, out of a group, in of a group], largest over the kernel; scaled in
            place.
        rounds: How often to go through the pairs at most.
    """
    scales = [torch.ones(sizes[pair.first].shape[:2].numel(), dtype=torch.float64) for pair in pairs]
    for _ in range(rounds):
        moved = 0.0
        for pair, scale in zip(pairs, scales, strict=True):
            first, second = sizes[pair.first], sizes[pair.second]
            r1, r2 = first.amax(2).flatten(), second.amax(1).flatten()
            step = torch.where((r1 > 0) & (r2 > 0), (r1 / r2).sqrt(), 1.0)
            first /= step.view(first.shape[0], first.shape[1], 1)
            second *= step.view(second.shape[0], 1, second.shape[2])
            scale *= step
            moved = max(moved, float((step - 1).abs().max()))
        if moved < _SETTLED:
            break
    return scales


def _sizes(module: nn.Module) -> Tensor:
    assert isinstance(module, _ConvNd)
    largest = module.weight.detach().double().abs().flatten(2).amax(2)
    return largest.view(module.groups, -1, largest.shape[1]).clone()
