"""Name patterns: long lists of layer names said in few regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from goldstick.errors import FormatError

_PATTERN_LIMIT, _WILD_LIMIT, _REPEAT_LIMIT = 1000, 4, 20
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


def _generalise(name: str) -> str:
    return r"\d+".join(re.escape(part) for part in _NUMBER.split(name))


@cache
def name_matcher(pattern: str) -> re.Pattern[str]:
    """A pattern on names out of a checkpoint's config, compiled, where matching it takes no time to speak of.

    Python's matcher goes back and tries again, which for a pattern made to that end takes for ever. So repeats of
    groups, more than 4 wildcards and more than 20 repeats in all are refused.

    Raises:
        FormatError: It is no regular expression, or one that may take too long.
    """
    shown = repr(pattern[:100])
    plain = re.sub(r"\\(.)", lambda escape: "." if escape[1] in "wWSD" else "a", pattern)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", lambda found: "a" if found[0] == "[0-9]" else ".", plain)
    repeats = len(re.findall(r"[*+?{]", plain.replace("(?", "(")))
    wild = len(re.findall(r"\.[*+{]", plain))
    if len(pattern) > _PATTERN_LIMIT or re.search(r"\)[*+{]", plain) or wild > _WILD_LIMIT or repeats > _REPEAT_LIMIT:
        raise FormatError(
            f"The config's pattern {shown} is refused: matching it could take for ever. Name the layers in full, or "
            f"use at most {_WILD_LIMIT} wildcards and repeat no group."
        )
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise FormatError(f"The config holds the bad pattern {shown}: {error}.") from error
