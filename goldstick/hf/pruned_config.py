"""The config of a transformers model that was pruned: what says of its widths what they are now."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from goldstick.core.edits import Prune
from goldstick.hf.names import empty_model
from goldstick.hf.pruned import tell_cuts
from goldstick.structure.network import Network


def describe_cuts(network: Network, accounts: Sequence[Mapping[str, Any]], cuts: Sequence[Prune]) -> None:
    """Let a pruned transformers model's config say its widths, or, where it cannot, what was cut; in place.

    Args:
        network: The pruned model, with the sites it had before anything was rounded.
        accounts: What was pruned, for the report.
        cuts: What was cut.
    """
    if not refit_config(network, accounts):
        tell_cuts(network.model.config, cuts)


def refit_config(network: Network, accounts: Sequence[Mapping[str, Any]]) -> bool:
    """Let a pruned transformers model's config say its widths, in place; whether it can.

    It can where all blocks have lost alike. Which key is meant is found by trying: those that hold the old number get
    the new one, and the config is right when it makes a model of just the shapes there are.

    Args:
        network: The pruned model, with the sites it had before anything was rounded.
        accounts: What was pruned, for the report.
    """
    model = network.model
    shapes = {site.name: site.shape for site in network.sites}
    for config in _candidates(model, accounts):
        try:  # a config may refuse what a model can do, such as heads that do not divide the hidden size
            made = empty_model(type(config).from_dict(config.to_dict()), type(model))
        except Exception:
            continue
        if {site.name: site.shape for site in Network(made).sites} == shapes:
            settings: Any = model.config
            for key, value in vars(config).items():
                if not key.startswith("_"):
                    setattr(settings, key, value)
            return True
    return False


def _candidates(model: nn.Module, accounts: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Configs in which old numbers of channels and heads are replaced by new ones."""
    layers = [layer for account in accounts for layer in account["layers"]]
    widths = dict.fromkeys((one["units"], one["kept"]) for one in layers if not one["heads"])
    heads = dict.fromkeys((one["units"], one["kept"]) for one in layers if one["heads"])
    settings: Any = model.config
    numbers = {key: value for key, value in vars(settings).items() if type(value) is int and not key.startswith("_")}
    if len(heads) > 1 or len(widths) > 1:
        return
    # A width that transformers derives from others, as GPT-2's n_inner, is not set.
    unset = [key for key, value in vars(settings).items() if value is None and ("inner" in key or "ffn" in key)]
    keys = [key for key, value in numbers.items() if value in [old for old, _ in widths]] + unset
    for key in keys if widths else [None]:
        config = copy.deepcopy(settings)
        if key is not None:
            setattr(config, key, next(iter(widths))[1])
        for old, new in heads:
            _fewer_heads(config, old, new)
        yield config


def _fewer_heads(config: Any, old: int, new: int) -> None:
    """Heads that share values, ``old`` of them, become ``new``; all query heads with them."""
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    for key in ("num_attention_heads", "num_key_value_heads"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value % old == 0:
            setattr(config, key, value // old * new)
