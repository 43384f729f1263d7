"""From a recipe's ``random_tokens`` to what is drawn for a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from goldstick.calibration.data.random_tokens import RandomTokens
from goldstick.evaluation.forward import embedding_rows
from goldstick.recipes.calibration import Calibration


def random_tokens(settings: Calibration, model: nn.Module, tokenizer: Any = None) -> RandomTokens | None:
    """Rows of random tokens, as a recipe asks for; ``None`` where it asks for none.

    Drawn are ids that the embedding has a row for, but for special ones, as the model's configuration and the
    tokenizer name them; of a tokenizer no more than it has tokens.

    Args:
        settings: The recipe's ``calibration``.
        model: The model.
        tokenizer: Its tokenizer, where it is known.
    """
    if not settings.random_tokens:
        return None
    rows, special = embedding_rows(model), special_ids(getattr(model, "config", None))
    if tokenizer is not None:
        rows = min(len(tokenizer), len(tokenizer) if rows is None else rows)
        special |= {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    ordinary = torch.tensor([one for one in range(rows or 0) if one not in special], dtype=torch.int64)
    return RandomTokens(share=settings.random_tokens, ordinary=ordinary, seed=settings.seed)


def special_ids(config: Any) -> set[int]:
    """Token ids that a configuration names: beginnings, ends, padding, and what stands for an image or a sound."""
    values: dict[str, Any] = vars(config) if config is not None else {}
    named = [value for name, value in values.items() if name.endswith(("_token_id", "_token_index"))]
    flat = [one for value in named for one in (value if isinstance(value, list | tuple) else [value])]
    return {one for one in flat if isinstance(one, int)}
