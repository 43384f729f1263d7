"""transformers' conversions of a checkpoint's weights, for the tensors that a quantized weight is stored as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from goldstick.formats.native import NATIVE
from goldstick.hf.names import ROW_OPERATIONS


def with_packed_tensors(conversions: Iterable[Any], suffixes: Sequence[str]) -> list[Any]:
    """Conversions that take what stands beside a weight's name, too, wherever they take the weight.

    Those that do more than move rows stay as they are: what they make is stored as the model holds it.

    Args:
        conversions: transformers' own.
        suffixes: What the tensors of a quantized weight have behind its name.
    """
    extended = []
    for conversion in conversions:
        extended.append(conversion)
        if hasattr(conversion, "operations"):
            if not {type(operation).__name__ for operation in conversion.operations} <= ROW_OPERATIONS:
                continue
            sources, targets = conversion._original_source_patterns, conversion._original_target_patterns
            for suffix in suffixes:
                named = [source + suffix for source in sources], [target + suffix for target in targets]
                extended.append(conversion.copy(*named, operations=list(conversion.operations)))
        else:
            extended += _renamed_with_suffixes(conversion)
    return extended


def _renamed_with_suffixes(renaming: Any) -> list[Any]:
    """Renamings of the tensors that a weight becomes: transformers takes a pattern's last word as a whole one."""
    (source, *more), (target, *_) = renaming._original_source_patterns, renaming._original_target_patterns
    source = source.removesuffix("$").removesuffix("(?!_)")
    if more or not (source.endswith("weight") or target.endswith("weight")):
        return []
    return [renaming.copy([source + suffix], [target + suffix]) for suffix in NATIVE.expert_suffixes]
