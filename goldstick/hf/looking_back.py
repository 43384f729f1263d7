"""Whether a language model goes on from a text: no prediction of its depends on the tokens behind it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import UsageError

#: Parameters up to which a twin of random numbers is built.
_LARGEST = 6 * 10**7
#: What the twin has fewer of. Some configs name tokens at the end of the vocabulary: these keep theirs.
_NARROW = {"num_hidden_layers": 1, "intermediate_size": 64}
_SMALLER = ({**_NARROW, "vocab_size": 512}, _NARROW)
#: Of the squares of the predictions: float32 rounds 1e-14 of them, attention of random weights moves 1e-4 at least.
_CLOSE = 1e-6


def require_looking_back(model: nn.Module) -> None:
    """Refuse a transformers model of which a token sees those behind it: its figures would be of what it has read.

    A twin with random numbers, of one layer where its config allows that, is given two texts that differ in their last
    token alone. What cannot be tried so is taken at its word.

    Args:
        model: The model, in memory or on the meta device; its class and config alone are looked at.

    Raises:
        UsageError: A prediction changes that was made before the last token.
    """
    if _sees_ahead(model):
        raise UsageError(
            f"a token of this {type(model).__name__} sees those behind it, so it is no causal language model, which "
            "goes on from a text. 'goldstick compare' compares its outputs with another's, and 'goldstick sensitivity' "
            "says which layer needs how many bits. Of a model that can be both, config.json says which: 'is_decoder': "
            "true for those made like BERT, 'attn_type': 'uni' for XLNet, 'causal': true for XLM"
        )


def _sees_ahead(model: nn.Module) -> bool:
    for smaller in _SMALLER:
        twin = _twin(model, smaller)
        moved = None if twin is None else _moved(twin)
        if moved is not None:
            return moved > _CLOSE
    return False


def _twin(model: Any, smaller: dict[str, int]) -> nn.Module | None:
    kind = type(model)
    try:
        config = copy.deepcopy(model.config)
        text = config.get_text_config()
        for name, value in smaller.items():
            if hasattr(text, name):
                setattr(text, name, min(value, getattr(text, name)))
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
        if size > _LARGEST:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin: nn.Module = kind(config).eval().float()
    except Exception:  # any code of the model may fail, in any way
        return None
    return twin


@torch.no_grad()
def _moved(twin: Any) -> float | None:
    """Σ (p′ − p)² / Σ p² over the predictions before the last token, each less its mean; ``None`` where it fails."""
    try:
        rows = min(len(twin.get_input_embeddings().weight), 512)
        ids = torch.arange(9).remainder(rows // 2).add(rows // 2).unsqueeze(0)  # [1, tokens]; padding comes first
        other = ids.clone()
        other[0, -1] = rows // 2
        first, second = (_centred(twin(input_ids=text).logits) for text in (ids, other))
    except Exception:  # any code of the model may fail, in any way
        return None
    return float((second - first).square().sum() / first.square().sum())


def _centred(logits: Tensor) -> Tensor:
    before = logits[:, :-1].double()
    return before - before.mean(-1, keepdim=True)
