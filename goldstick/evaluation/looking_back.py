"""Whether a language model goes on from a text: no prediction of its depends on the tokens behind it."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import UsageError
from goldstick.evaluation.forward import device_of, embedding_rows, evaluating

#: Parameters up to which a twin of random numbers is built.
_LARGEST = 6 * 10**7
#: What the twin has fewer of. Some configs name tokens at the end of the vocabulary: these keep theirs.
_NARROW = {"num_hidden_layers": 1, "intermediate_size": 64}
_SMALLER = ({**_NARROW, "vocab_size": 512}, _NARROW)
_TOKENS = 9
#: Of the squares of the predictions: float32 rounds 1e-14 of them, attention of random weights moves 6e-6 at least.
_CLOSE = 1e-6
#: How often what one text's predictions differ by in two rows of a batch: rounding in 16 bits may depend on the row.
_ABOVE_ROUNDING = 10


def require_looking_back(model: nn.Module) -> None:
    """Refuse a transformers model of which a token sees those behind it: its figures would be of what it has read.

    The model is given texts that differ in their last token alone. Of one whose weights are not in memory, or that does
    not run on such texts, a twin with random numbers is, of one layer where its config allows that. What cannot be
    tried so either is taken at its word.

    Args:
        model: The model, in memory or on the meta device, where its class and config alone are looked at.

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
    in_memory = not any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers()))
    if in_memory and (answer := _moves(model)) is not None:
        return answer
    for smaller in _SMALLER:
        twin = _twin(model, smaller)
        if twin is not None and (answer := _moves(twin)) is not None:
            return answer
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


def _moves(model: nn.Module) -> bool | None:
    """Whether another last token changes the predictions p before it; ``None`` where the model cannot be asked.

    Three texts are the rows of one batch, of which the second ends otherwise: so a layer that rounds its inputs by the
    whole tensor rounds all by one scale, and what the first and the third differ by is rounding.
    """
    try:
        rows = min(embedding_rows(model) or 0, 512)
        text = torch.arange(_TOKENS).remainder(rows // 2).add(rows // 2)  # [tokens]; padding comes first
        ids = text.repeat(3, 1)  # [3, tokens]
        ids[1, -1] = rows // 2
        caller: Any = model
        with evaluating(model):
            first, other, again = _centred(caller(input_ids=ids.to(device_of(model))).logits)
    except Exception:  # any code of the model may fail, in any way
        return None
    moved, rounding = ((row - first).square().sum() for row in (other, again))  # Σ (p′ − p)²
    return bool(moved > (_CLOSE * first.square().sum()).maximum(_ABOVE_ROUNDING * rounding))


def _centred(logits: Tensor) -> Tensor:
    before = logits[:, :-1].cpu().double()
    return before - before.mean(-1, keepdim=True)
