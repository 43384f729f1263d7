"""A cache that a forward works on and nobody asked for: it is not handed back.

Whoever turns caches off passes all tokens in every call. ``generate`` hands in again whatever cache came back, and with
it the model would see all tokens twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

_MARK = "unasked"


def mark_unasked(cache: Any, passed: Mapping[str, Any], config: Any) -> None:
    """Let a cache remember whether the caller of a forward wants it back.

    Args:
        cache: What the forward works on.
        passed: The arguments of the forward.
        config: The decoder's config, which says whether it is wanted where the arguments do not.
    """
    wanted = passed.get("use_cache")
    setattr(cache, _MARK, not (getattr(config, "use_cache", True) if wanted is None else wanted))


def keep_unasked(decoder: nn.Module) -> None:
    """Let a decoder leave unasked caches out of what it gives."""
    decoder.register_forward_hook(_without_unasked)


def hand_unasked(decoder: nn.Module) -> None:
    """Let it give all that it gives again."""
    for key, hook in list(decoder._forward_hooks.items()):
        if hook is _without_unasked:
            del decoder._forward_hooks[key]


def _without_unasked(decoder: nn.Module, args: Any, output: Any) -> Any:
    if isinstance(output, Mapping):
        kept: Any = {name: value for name, value in output.items() if not getattr(value, _MARK, False)}
        return output if len(kept) == len(output) else type(output)(**kept)
    return tuple(one for one in output if not getattr(one, _MARK, False)) if type(output) is tuple else output
