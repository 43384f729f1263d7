"""Kullback–Leibler divergence of one model's next-token distributions from another's, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**22
"""Values of a float64 temporary at most: 32 MiB."""


def token_kl(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(p ‖ q) = Σ_v p_v (log p_v − log q_v) in nats for each position, p = softmax(first), q of ``second``.

    In float64, since the divergence of an 8-bit model is of the size of float32's rounding errors, and a position at a
    time summed in one thread, so that the number of threads changes nothing. Never below 0. A token whose p is 0
    adds nothing.

    Args:
        first: logits [..., vocabulary] of the model that counts as right, any floating type.
        second: logits of the other, of the same shape.

    Returns:
        float64 [...], on the CPU; NaN where a logit is NaN.
    """
    rows, other = first.reshape(-1, first.shape[-1]), second.reshape(-1, second.shape[-1])
    step = max(1, CHUNK_ELEMENTS // first.shape[-1])
    parts = []
    for start in range(0, len(rows), step):
        log_p = torch.log_softmax(rows[start : start + step].double(), dim=-1)
        log_q = torch.log_softmax(other[start : start + step].double(), dim=-1)
        p = log_p.exp()
        terms = torch.where(p == 0, torch.zeros_like(p), p * (log_p - log_q))
        parts.append(terms.sum(dim=-1).clamp(min=0.0).cpu())
    return torch.cat(parts).reshape(first.shape[:-1]) if parts else torch.empty(first.shape[:-1], dtype=torch.float64)
