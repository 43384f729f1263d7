"""Prompts that begin alike: which of them share a beginning that is run once, its keys and values kept for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from goldstick.evaluation.forward import forward

LEAST = 16
"""Tokens that are shared at least; below that two forward passes cost more than is saved."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Sequences whose first tokens are equal.

    Attributes:
        members: Their indices.
        prefix: How many tokens they share, none of which a target is predicted from.
        longest: Tokens of the longest.
    """

    members: tuple[int, ...]
    prefix: int
    longest: int

    @property
    def tokens(self) -> int:
        """What its keys and values take, padding included."""
        return len(self.members) * self.longest


def families(inputs: Sequence[Sequence[int]], limits: Sequence[int], tokens_per_batch: int) -> Iterator[Family]:
    """Yield the families among sequences, each of two at least; at least half of each member is the shared part.

    Args:
        inputs: The sequences.
        limits: How many tokens of each may be shared.
        tokens_per_batch: Members times the longest of a family at most.
    """
    order = sorted(range(len(inputs)), key=lambda index: list(inputs[index]))
    members, prefix, longest = [order[0]] if order else [], limits[order[0]] if order else 0, 0
    for index in order[1:]:
        first = inputs[members[0]]
        longest = max(longest, len(first))
        common = min(prefix, limits[index], _equal_tokens(first, inputs[index]))
        grown = max(longest, len(inputs[index]))
        if common >= LEAST and 2 * common >= grown and (len(members) + 1) * grown <= tokens_per_batch:
            members.append(index)
            prefix, longest = common, grown
            continue
        if len(members) > 1:
            yield Family(members=tuple(members), prefix=prefix, longest=longest)
        members, prefix, longest = [index], limits[index], 0
    if len(members) > 1:
        yield Family(members=tuple(members), prefix=prefix, longest=longest)


def batches_of_families(found: Sequence[Family], tokens_per_batch: int) -> Iterator[list[Family]]:
    """Yield families whose prefixes are equally long together, the longest first; they need no padding there."""
    batch: list[Family] = []
    for family in sorted(found, key=lambda family: (-family.prefix, -family.longest)):
        members = sum(len(other.members) for other in batch) + len(family.members)
        longest = max(family.longest, *(other.longest for other in batch)) if batch else family.longest
        if batch and (family.prefix != batch[0].prefix or members * longest > tokens_per_batch):
            yield batch
            batch = []
        batch.append(family)
    if batch:
        yield batch


def prefixes_run(model: nn.Module, inputs: Sequence[Sequence[int]], batch: Sequence[Family]) -> Any:
    """Keys and values of each family's prefix, once for each of its members; ``None`` if the model gives none to reuse.

    Only transformers' plain caches of all tokens are taken: what quantized ones and those with a window hold may depend
    on how many tokens came together.
    """
    length = batch[0].prefix
    ids = torch.tensor([list(inputs[family.members[0]][:length]) for family in batch])
    output: Any = forward(model, ids, torch.ones_like(ids), use_cache=True, logits_to_keep=1)
    cache: Any = getattr(output, "past_key_values", None)
    if type(cache).__name__ != "DynamicCache" or {type(layer).__name__ for layer in cache.layers} != {"DynamicLayer"}:
        return None
    sizes = torch.tensor([len(family.members) for family in batch])
    cache.batch_select_indices(torch.arange(len(batch)).repeat_interleave(sizes).to(cache.layers[0].keys.device))
    return cache


def _equal_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
