"""Scores from end-loss gradients: what rounding each layer would cost, for every candidate, from backward passes alone.

KL(p ‖ q) of a model whose weights move by Δ is ½ vec(Δ)ᵀ F vec(Δ) to second order, F the Fisher matrix, since its
gradient is zero where Δ is. With labels y sampled from the model's own p, F = E[g gᵀ], g = ∇ log p(y), so that

    second order   ½ E⟨G, Δ⟩² per token,  G = Σ_t g_t x_tᵀ over a sequence
    first order    E Σ|G ∘ Δ| per token, which is what AutoRound's AutoScheme sums

where x_t are a layer's inputs and g_t the gradients of its outputs (1301.3584, 2505.22988).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from goldstick.calibration.end_gradients import FloatBlocks, InMemory
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.jobs.search.chain import find_chain
from goldstick.jobs.search.reverse_sweep import ReverseSweep
from goldstick.structure.network import Network, Site


@dataclass(frozen=True, kw_only=True)
class GradientScore:
    """What a candidate is said to cost by gradients, per token.

    Attributes:
        first: First order; of no unit that can be compared with KL.
        second: Second order, in nats.
    """

    first: float
    second: float


def gradient_scores(
    network: Network,
    batches: Sequence[Mapping[str, Tensor]],
    changes: Mapping[str, Sequence[Site]],
    candidates: Mapping[str, Sequence[str]],
    rounded: Any,
    *,
    draws: int = 4,
    seed: int = 0,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
    floats: FloatBlocks | None = None,
) -> dict[tuple[str, str], GradientScore]:
    """The scores of every candidate of every group of layers, (group, scheme) → score.

    Every layer of a group changes at once. Of each sequence there are ``draws`` sets of labels. A reverse sweep takes
    the gradients, with one block and its changes in memory; where blocks do not feed one another, with all of them.

    Args:
        network: The model, in float32.
        batches: Keyword arguments of its forward.
        changes: Group → its sites.
        candidates: Group → its schemes.
        rounded: Gives the weight of a site as a scheme has it (:class:`RoundedLayers`).
        draws: Sets of labels for each sequence.
        seed: Of the labels.
        progress: Told what is done.
        ranks: Who does it together, each some of the sequences; what these give is added up in their order.
        floats: Loads the model's blocks, where they are not in memory.
    """
    ranks = ranks or Ranks()
    floats = floats or InMemory(network.model)
    rows: list[dict[str, Any]] = [
        {**{key: value[row : row + 1] for key, value in batch.items()}, "use_cache": False}
        for batch in batches
        for row in range(len(batch["input_ids"]))
    ]
    lengths = [row["input_ids"].numel() for row in rows]
    own = ranks.share(len(rows))
    sweep = ReverseSweep(
        network,
        find_chain(network, rows[0], floats),
        floats,
        rows[own.start : own.stop],
        _Labels(seed, [tokens for tokens in lengths[: own.start] for _ in range(draws)]),
        changes=changes,
        candidates=candidates,
        rounded=rounded,
        draws=draws,
        progress=progress,
    )
    every = ranks.gather(sweep.run())
    sets = draws * sum(lengths)
    found = {}
    for name, schemes in candidates.items():
        first = torch.cat([products[name].first for products in every]).sum(0) / sets
        second = torch.cat([products[name].inner for products in every]).square().sum(0) / (2 * sets)
        for place, scheme in enumerate(schemes):
            found[name, scheme] = GradientScore(first=float(first[place]), second=float(second[place]))
    return found


class _Labels:
    """Sets of labels y ~ p, one after the other.

    Args:
        seed: Of chance.
        passed: Tokens of each set of labels before, which others draw: the generator goes on as if it had.
    """

    def __init__(self, seed: int, passed: Sequence[int]) -> None:
        self._generator, self._passed = torch.Generator().manual_seed(seed), list(passed)

    def __call__(self, log_p: Tensor) -> Tensor:
        """Labels [tokens, 1] of log-probabilities [tokens, vocabulary]."""
        for tokens in self._passed:  # as many numbers as a draw of labels takes
            torch.empty(tokens, log_p.shape[-1], dtype=log_p.dtype).exponential_(generator=self._generator)
        self._passed = []
        return torch.multinomial(log_p.exp(), 1, generator=self._generator)
