"""Generation for a batch of prompts: left padding, key and value cache, greedy unless told how to choose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from goldstick.evaluation.batching import pad
from goldstick.evaluation.forward import forward, require_numbers
from goldstick.evaluation.sampling import likeliest


def greedy(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    end_ids: Collection[int],
    finished: Callable[[list[int]], bool],
    pad_id: int,
    choose: Callable[[Tensor], Tensor] = likeliest,
) -> list[list[int]]:
    """Return the tokens that continue each prompt, greedily unless ``choose`` says otherwise.

    Args:
        model: a causal language model after transformers' calling convention. Where its output carries no
            ``past_key_values`` every step runs over the whole sequence: slower, the same tokens.
        prompts: non-empty token sequences, together with ``max_new_tokens`` within the model's context.
        max_new_tokens: the most tokens to generate for a prompt.
        end_ids: tokens that end a generation; they are not part of the result.
        finished: told the tokens generated so far, whether to stop.
        pad_id: what to fill the left of shorter prompts with.
        choose: takes logits ``[rows, vocabulary]`` and gives the next token of each row.
    """
    ids, mask = pad(prompts, pad_id, left=True)  # [rows, longest]
    generated: list[list[int]] = [[] for _ in prompts]
    running = [True] * len(prompts)
    inputs, cache = ids, None
    for _ in range(max_new_tokens):
        output = forward(
            model,
            inputs,
            mask,
            position_ids=_positions(mask)[:, -inputs.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = getattr(output, "past_key_values", None)
        chosen = choose(require_numbers(output.logits[:, -1])).cpu()  # [rows]
        for row, token in enumerate(chosen.tolist()):
            if not running[row]:
                continue
            if token in end_ids:
                running[row] = False
                continue
            generated[row].append(token)
            running[row] = not finished(generated[row])
        if not any(running):
            break
        mask = torch.cat([mask, torch.ones((len(mask), 1), dtype=mask.dtype)], dim=1)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        inputs = ids if cache is None else chosen[:, None]
    return generated


def _positions(mask: Tensor) -> Tensor:
    """Return each token's position counted without the padding before it; 0 on padding."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)
