"""What a model predicts, and by chance a slope there whose average square is the curvature of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from goldstick.core.token_mask import TokenMask
from goldstick.structure.trace import tensors_in

_TEMPERATURE = 3.0
"""Of the predictions whose curvature counts: where the float model is nearly certain, that at 1 is almost nothing, and
errors of rounding, which are large, would cost nothing there."""


def slopes(output: Any, mask: TokenMask, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """What a model predicts, and ∇L there, of a random loss L whose ∇L ∇Lᵀ is on average its loss's Hessian.

    At scores z that is the Hessian of a divergence, diag(p) − p pᵀ: ∇L = √p ∘ ε − p (√pᵀ ε), with ε of ±1 by chance.
    Labels drawn from p (arXiv 2505.22988) have the same average, and where one is nearly certain, hardly ever any
    gradient. p = softmax(z / 3) over the last dimension. Scores are what a model calls logits, as many as there are
    (``start_logits`` and ``end_logits``). A model without scores has the mean square of its first output for a loss:
    ∇L = ε.

    Args:
        output: What its forward gives; ``requires_grad`` where it depends on what is looked at.
        mask: Which of the tokens count.
        generator: Where chance is drawn from.

    Returns:
        Pairs of a prediction and ∇L, of its shape and dtype; none where nothing depends on what is looked at.
    """
    scores = _scores(output)
    if not scores:
        first = next((one for one in tensors_in(output) if _depends(one)), None)
        return [] if first is None else [(first, _masked(signs(first, generator), mask))]
    return [(one, _masked(_slope(one, generator), mask).to(one.dtype)) for one in scores]


def _scores(output: Any) -> list[Tensor]:
    fields: Mapping[str, Any] = output if isinstance(output, Mapping) else {}
    if hasattr(output, "logits") and not fields:
        fields = vars(output)
    named = (value for name, value in fields.items() if "logits" in str(name))
    return [value for value in named if isinstance(value, Tensor) and _depends(value) and _over_classes(value)]


def _over_classes(scores: Tensor) -> bool:
    """Whether the last dimension is one of classes: not for a single number, nor for an image of scores."""
    return 1 < scores.ndim <= 3 and scores.shape[-1] > 1


def _depends(value: Tensor) -> bool:
    return value.is_floating_point() and value.requires_grad


def _slope(scores: Tensor, generator: torch.Generator) -> Tensor:
    with torch.no_grad():
        share = (scores.float() / _TEMPERATURE).softmax(-1)
        root = share.sqrt().mul_(signs(share, generator))
        return root - share * root.sum(-1, keepdim=True)


def _masked(slope: Tensor, mask: TokenMask) -> Tensor:
    counts = mask.of(slope)
    return slope if counts is None else slope * counts.unsqueeze(-1).to(slope.device)


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """±1 by chance in the shape and dtype of a tensor: of each number drawn all 64 bits count."""
    words = torch.empty(-(-like.numel() // 64), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    bits = torch.arange(256).unsqueeze(-1) >> torch.arange(8) & 1
    found = embedding(words.view(torch.uint8).to(like.device).int(), (2 * bits - 1).to(like))
    return found.flatten()[: like.numel()].view(like.shape)
