"""Log-probabilities of given tokens: one forward pass per batch, logits for the asked positions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from goldstick.evaluation.batching import Advance, batches_by_length, pad
from goldstick.evaluation.forward import forward, require_numbers

CHUNK = 512
"""Positions whose logits are turned to float32 at a time; bounds the memory a large vocabulary takes."""

Row = tuple[Sequence[int], list[list[int]]]
"""An input, and targets no longer than it: the last target token is predicted from the whole input."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""From logits [positions, vocabulary] and targets [positions] to figures of each position [positions, …]."""


def score(
    model: nn.Module,
    rows: Sequence[Row],
    pad_id: int,
    tokens_per_batch: int,
    advance: Advance | None = None,
    measure: Measure | None = None,
) -> list[list[Tensor]]:
    """Return log p(target) token by token for each row's targets, or what ``measure`` gives; float32 on the CPU.

    A target of length c is predicted from the positions L - c … L - 1 of an input of length L. Padding is on
    the right, where a causal model's earlier positions cannot see it. Raises QuantizationError for NaN.
    """
    measure = measure or target_log_probabilities
    scores: list[list[Tensor]] = [[torch.empty(0) for _ in targets] for _, targets in rows]
    total = sum(len(targets) for _, targets in rows)
    done = sum(len(targets) for ids, targets in rows if not ids)
    present = [index for index, (ids, _) in enumerate(rows) if ids]
    for batch in batches_by_length([len(rows[index][0]) for index in present], tokens_per_batch):
        chosen = [present[position] for position in batch]
        ids, mask = pad([rows[index][0] for index in chosen], pad_id)
        needed = _needed_positions([rows[index] for index in chosen])
        logits = forward(model, ids, mask, logits_to_keep=needed, use_cache=False).logits
        if logits.shape[1] != len(needed):  # this model computes every position
            logits = logits[:, needed.to(logits.device)]
        for row, index in enumerate(chosen):  # logits: [rows, needed positions, vocabulary]
            end = int(torch.searchsorted(needed, len(rows[index][0])))
            for k, target in enumerate(rows[index][1]):
                values = measure(logits[row, end - len(target) : end], torch.tensor(target))
                scores[index][k] = require_numbers(values)
        done += sum(len(rows[index][1]) for index in chosen)
        if advance is not None:
            advance(done, total)
    return scores


def _needed_positions(rows: Sequence[Row]) -> Tensor:
    """Return, in order, the positions from which some target of some row is predicted: int64 [positions]."""
    needed: set[int] = set()
    for ids, targets in rows:
        needed.update(range(len(ids) - max(len(target) for target in targets), len(ids)))
    return torch.tensor(sorted(needed))


def target_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return log softmax(logits)[t, targets[t]] in float32, on the CPU.

    Args:
        logits: [positions, vocabulary], any floating type.
        targets: [positions], int64.
    """
    parts = []
    for start in range(0, len(targets), CHUNK):
        chunk = logits[start : start + CHUNK].float()  # [chunk, vocabulary]
        chosen = chunk.gather(-1, targets[start : start + CHUNK, None].to(chunk.device)).squeeze(-1)
        parts.append((chosen - chunk.logsumexp(dim=-1)).cpu())
    return torch.cat(parts) if parts else torch.empty(0)


def target_scores(logits: Tensor, targets: Tensor) -> Tensor:
    """Return float32 [positions, 2]: log softmax(logits)[t, targets[t]], and 1 where that token is the likeliest.

    The likeliest of equal tokens is the first, as in greedy generation. Arguments as for `target_log_probabilities`.
    """
    likeliest = logits.argmax(dim=-1).cpu() == targets
    return torch.stack([target_log_probabilities(logits, targets), likeliest.float()], dim=-1)
