"""Log-probabilities of given tokens: one forward pass per batch, logits for the asked positions only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.ranks import Ranks
from goldstick.evaluation.batching import Advance, batches_by_length, pad
from goldstick.evaluation.forward import forward, require_numbers, takes
from goldstick.evaluation.shared_prefix import Family, batches_of_families, families, prefixes_run

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
    ranks: Ranks | None = None,
) -> list[list[Tensor]]:
    """Return log p(target) token by token for each row's targets, or what ``measure`` gives; float32 on the CPU.

    A target of length c is predicted from the positions L - c … L - 1 of an input of length L. Padding is on
    the right, where a causal model's earlier positions cannot see it. Inputs that begin alike run their shared part
    once, where the model keeps a cache. Batches are divided over ranks. Raises QuantizationError for NaN.
    """
    measure = measure or target_log_probabilities
    scores: list[list[Tensor]] = [[torch.empty(0) for _ in targets] for _, targets in rows]
    total = sum(len(targets) for _, targets in rows)
    done = sum(len(targets) for ids, targets in rows if not ids)
    inputs = [ids for ids, _ in rows]
    batches = list(_batches(model, rows, tokens_per_batch))

    def scored(number: int) -> list[list[Tensor]]:
        nonlocal done
        chosen, shared = batches[number]
        length = shared[0].prefix if shared else 0
        cache = prefixes_run(model, inputs, shared) if shared else None
        ids, mask = pad([inputs[index][length:] for index in chosen], pad_id)
        mask = torch.cat([mask.new_ones(len(mask), length), mask], dim=1)
        needed = _needed_positions([(inputs[index][length:], rows[index][1]) for index in chosen])
        kept: dict[str, Any] = {"use_cache": False} if cache is None else {"past_key_values": cache, "use_cache": True}
        logits = forward(model, ids, mask, logits_to_keep=needed, **kept).logits
        if logits.shape[1] != len(needed):  # this model computes every position
            logits = logits[:, needed.to(logits.device)]
        found = []
        for row, index in enumerate(chosen):  # logits: [rows, needed positions, vocabulary]
            end = int(torch.searchsorted(needed, len(inputs[index]) - length))
            targets = [(logits[row, end - len(target) : end], torch.tensor(target)) for target in rows[index][1]]
            found.append([require_numbers(measure(*target)) for target in targets])
        done += sum(len(rows[index][1]) for index in chosen)
        if advance is not None:
            advance(done, total)
        return found

    costs = [sum(len(inputs[index]) for index in chosen) for chosen, _ in batches]
    for (chosen, _), found in zip(batches, (ranks or Ranks()).each(costs, scored), strict=True):
        for index, values in zip(chosen, found, strict=True):
            scores[index] = values
    return scores


def _batches(
    model: nn.Module, rows: Sequence[Row], tokens_per_batch: int
) -> Iterator[tuple[list[int], Sequence[Family]]]:
    """Yield rows that run together, and the families whose prefixes are run before them."""
    inputs = [ids for ids, _ in rows]
    left = {index for index, ids in enumerate(inputs) if ids}
    if takes(model, "past_key_values"):
        limits = [len(ids) - max(map(len, targets), default=0) for ids, targets in rows]
        found = list(families(inputs, limits, tokens_per_batch))
        keeps = bool(found) and prefixes_run(model, inputs, found[:1]) is not None
        for batch in batches_of_families(found, tokens_per_batch) if keeps else ():
            chosen = [index for family in batch for index in family.members]
            left.difference_update(chosen)
            yield chosen, batch
    alone = sorted(left)
    for places in batches_by_length([len(inputs[index]) for index in alone], tokens_per_batch):
        yield [alone[place] for place in places], ()


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
