"""Scores from end-loss gradients: what rounding each layer would cost, for every candidate, from backward passes alone.

KL(p ‖ q) of a model whose weights move by Δ is ½ vec(Δ)ᵀ F vec(Δ) to second order, F the Fisher matrix, since its
gradient is zero where Δ is. With labels y sampled from the model's own p, F = E[g gᵀ], g = ∇ log p(y), so that

    second order   ½ E⟨G, Δ⟩² per token,  G = Σ_t g_t x_tᵀ over a sequence
    first order    E Σ|G ∘ Δ| per token, which is what AutoRound's AutoScheme sums

where x_t are a layer's inputs and g_t the gradients of its outputs (1301.3584, 2505.22988).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.layout import Layout
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.structure.network import Network, Site

#: Bytes of the changes Δ that are held at a time; with more of them the backward passes are repeated.
MOST_HELD = 1_000_000_000


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
) -> dict[tuple[str, str], GradientScore]:
    """The scores of every candidate of every group of layers, (group, scheme) → score.

    Every layer of a group changes at once. One sequence runs at a time; of each, ``draws`` sets of labels.

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
    """
    ranks = ranks or Ranks()
    rows = [{key: value[row : row + 1] for key, value in batch.items()} for batch in batches for row in _rows(batch)]
    tokens = sum(row["input_ids"].numel() for row in rows)
    found: dict[tuple[str, str], GradientScore] = {}
    parts = list(_parts(changes, candidates))
    for number, part in enumerate(parts):
        held = {
            site.name: torch.stack(
                [(rounded.matrix(site, scheme) - network.weight(site)).flatten() for scheme in candidates[name]]
            )
            for name in part
            for site in changes[name]
        }
        sizes = {name: change.abs() for name, change in held.items()}
        zeros = {name: torch.zeros(len(candidates[name]), dtype=torch.float64) for name in part}
        generator = torch.Generator().manual_seed(seed)
        sites = [site for name in part for site in changes[name]]
        terms: list[tuple[str, list[Tensor], Tensor]] = []  # of each set of labels and group: first order, second
        own = ranks.share(len(rows))
        passed = [row["input_ids"].numel() for row in rows[: own.start]]
        for done in own:
            progress("gradient scores", number * len(rows) + done, len(parts) * len(rows))
            for gradients in _gradients(network, rows[done], sites, draws, generator, passed):
                for name in part:
                    inner, sums = torch.zeros_like(zeros[name]), []
                    for site in changes[name]:
                        G = gradients[site.name].flatten()  # noqa: N806
                        inner += (held[site.name] @ G).double()
                        sums.append((sizes[site.name] @ G.abs()).double())
                    terms.append((name, sums, inner.square()))
            passed = []
        first, second = ({name: zero.clone() for name, zero in zeros.items()} for _ in range(2))
        for name, sums, square in (term for each in ranks.gather(terms) for term in each):
            for one in sums:
                first[name] += one
            second[name] += square
        for name in part:
            for place, scheme in enumerate(candidates[name]):
                found[name, scheme] = GradientScore(
                    first=float(first[name][place]) / (draws * tokens),
                    second=float(second[name][place]) / (2 * draws * tokens),
                )
    progress("gradient scores", len(parts) * len(rows), len(parts) * len(rows))
    return found


def _rows(batch: Mapping[str, Tensor]) -> range:
    return range(len(batch["input_ids"]))


def _parts(changes: Mapping[str, Sequence[Site]], candidates: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Groups whose changes are held together."""
    part: list[str] = []
    size = 0
    for name, sites in changes.items():
        own = sum(site.shape.numel() for site in sites) * len(candidates[name]) * 4
        if part and size + own > MOST_HELD:
            yield part
            part, size = [], 0
        part.append(name)
        size += own
    if part:
        yield part


def _gradients(
    network: Network,
    row: Mapping[str, Tensor],
    sites: Sequence[Site],
    draws: int,
    generator: torch.Generator,
    passed: Sequence[int],
) -> Iterator[dict[str, Tensor]]:
    """The gradient of Σ log p(y) of a sequence in the canonical matrix of each site, for sets of labels y ~ p.

    ``passed`` are the tokens of sequences before, whose labels others draw: the generator goes on as if it had.
    """
    model: Any = network.model
    parameters = {site.name: getattr(network.module(site), site.parameter) for site in sites}
    with torch.enable_grad(), _learning(parameters.values()):
        logits = model(**row, use_cache=False).logits[0].float()
        log_p = torch.log_softmax(logits, dim=-1)
        for tokens in passed:
            for _ in range(draws):  # as many numbers as a draw of labels takes
                torch.empty(tokens, log_p.shape[-1], dtype=log_p.dtype).exponential_(generator=generator)
        for draw in range(draws):
            labels = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
            found: Sequence[Tensor | None] = torch.autograd.grad(
                log_p.gather(1, labels).sum(), list(parameters.values()), retain_graph=draw + 1 < draws,
                allow_unused=True,
            )  # fmt: skip
            yield {
                site.name: torch.zeros(site.matrix_shape) if one is None else _matrix(site, one)
                for site, one in zip(sites, found, strict=True)
            }


def _matrix(site: Site, gradient: Tensor) -> Tensor:
    return gradient if site.layout is Layout.LINEAR else site.layout.to_matrix(gradient)


@contextmanager
def _learning(parameters: Any) -> Iterator[None]:
    chosen: list[nn.Parameter] = list(parameters)
    before = [parameter.requires_grad for parameter in chosen]
    try:
        for parameter in chosen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, was in zip(chosen, before, strict=True):
            parameter.requires_grad_(was)
