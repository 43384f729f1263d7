"""Name patterns: long lists of layer names said in few regular expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from goldstick.errors import FormatError

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def patterns_for(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Targets that match every one of ``names`` and none of ``others``, in compressed-tensors' syntax.

    Names that differ only in layer or expert numbers share one ``re:`` pattern, unless that pattern would match one
    of ``others``; those are then listed by their full names.
    """
    taken = {_generalise(name) for name in others}
    by_shape: dict[str, list[str]] = {}
    for name in names:
        by_shape.setdefault(_generalise(name), []).append(name)
    result = []
    for shape, members in by_shape.items():
        if len(members) == 1 or shape in taken:
            result.extend(members)
        else:
            result.append(f"re:^{shape}$")
    return result


def module_names(tensor: str, parameter: str) -> list[str]:
    """What the module of a weight is called: in the checkpoint and, where that is another name, in the model.

    Readers look for either: vLLM for what the checkpoint says, transformers 5 for what its model does. Empty where the
    tensor is no module's ``weight``.
    """
    if not tensor.endswith(".weight"):
        return []
    names = (name for name in (tensor, parameter) if name.endswith(".weight"))
    return list(dict.fromkeys(name.removesuffix(".weight") for name in names))


def excepted_names(config: Mapping[str, Any], key: str) -> list[str]:
    """The names that a ``quantization_config`` lists under a key; none where it has no such key.

    Raises:
        FormatError: What stands there is no list of names.
    """
    listed = config.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FormatError(f"{key} is no list of names")
    return listed


def _generalise(name: str) -> str:
    return r"\d+".join(re.escape(part) for part in _NUMBER.split(name))
