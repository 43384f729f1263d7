"""Calling a causal language model: its device, its mode and the arguments its ``forward`` knows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import DataError, QuantizationError


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer that is in memory, the CPU where none is.

    Blocks that are read in their turn lie on the meta device until then.
    """
    tensor = next((tensor for tensor in chain(model.parameters(), model.buffers()) if not tensor.is_meta), None)
    return torch.device("cpu") if tensor is None else tensor.device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode without gradients, and give each its own mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def takes(model: nn.Module, argument: str) -> bool:
    """Return whether the model's ``forward`` names ``argument``."""
    return argument in inspect.signature(model.forward).parameters


def without_cache(model: nn.Module) -> dict[str, bool]:
    """What tells a forward to keep nothing for later calls, which may be changed in place (RWKV's state)."""
    taken = inspect.signature(model.forward).parameters
    others = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    asked = "use_cache" in taken or (others and hasattr(getattr(model, "config", None), "use_cache"))
    return {"use_cache": False} if asked else {}


def forward(model: nn.Module, ids: Tensor, mask: Tensor, **extra: Any) -> Any:
    """Return ``model(input_ids, attention_mask, **extra)``, without the extras its ``forward`` does not name.

    Whether padding positions need ``position_ids``, or logits can be restricted by ``logits_to_keep``,
    differs between model families; both are named in the signature where they exist.
    """
    ids = _known(model, ids, mask)
    device = device_of(model)
    arguments = {name: value for name, value in extra.items() if takes(model, name)}
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    return model(input_ids=ids.to(device), attention_mask=mask.to(device), **moved)


def embedding_rows(model: Any) -> int | None:
    """How many token ids a model's embedding, float or quantized, has a row for; ``None`` where it has no embedding."""
    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    weight = embedding.weight_packed if hasattr(embedding, "weight_packed") else getattr(embedding, "weight", None)
    return None if weight is None else len(weight)


def _known(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Token ids that the embedding has rows for: others would crash far from here, or read foreign memory.

    Padding, which nothing looks at, may be such a token; it becomes the first.
    """
    rows = embedding_rows(model)
    if rows is None or not ids.numel() or int(ids.max()) < rows:
        return ids
    strange = ids >= rows
    if bool((strange & mask[:, -ids.shape[1] :].bool()).any()):
        require_row(model, int(ids.max()))
    return ids.masked_fill(strange, 0)


def require_row(model: nn.Module, token: int) -> None:
    """Raise DataError where a token id of the tokenizer has no row in the embedding."""
    rows = embedding_rows(model)
    if rows is not None and token >= rows:
        raise DataError(
            f"the tokenizer gives token id {token}, and the embedding of {type(model).__name__} has {rows} "
            "rows: they are not of one model; put the model's own tokenizer files beside its weights"
        )


def require_numbers(values: Tensor) -> Tensor:
    """Return ``values``; raise QuantizationError where one is NaN, which no metric could show."""
    if bool(torch.isnan(values).any()):
        raise QuantizationError(
            "the model's logits are NaN, so no metric means anything: its weights are damaged or its "
            "activations overflow; look for layers with NaN scales, or evaluate in bfloat16 or float32"
        )
    return values
