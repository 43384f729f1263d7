"""``transform_config``: how compressed-tensors says that layers turn their input by a Hadamard transform at run time.

A group of it has a ``type``, a size ``head_dim`` and a list ``apply`` of where: ``location: input`` is what a layer is
given. H is Sylvester's and divided by √head_dim, in blocks of ``head_dim`` channels, in float32; being symmetric, it is
its own inverse. What else it can say was done to the weights before they were stored (``weight_input``,
``weight_output``), and asks nothing of a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

from goldstick.core.input_rotation import LARGEST_TRANSFORM
from goldstick.errors import FormatError
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.name_patterns import patterns_for

TRANSFORM_CONFIG = "transform_config"
#: What was done to weights already.
_DONE_BEFORE = ("weight_input", "weight_output")


def transform_config(sizes: Mapping[str, int], others: Sequence[str]) -> dict[str, Any]:
    """The ``transform_config`` under which layers turn their input.

    Args:
        sizes: Module name → channels that are mixed.
        others: Names of all other modules that hold a matrix.
    """
    groups = {}
    for size in sorted(set(sizes.values())):
        names = [name for name, own in sizes.items() if own == size]
        rest = [*others, *(name for name, own in sizes.items() if own != size)]
        place = {"targets": patterns_for(names, rest), "location": "input", "inverse": False, "ignore": []}
        groups[f"R4_{size}"] = {
            "type": "hadamard",
            "apply": [place],
            "randomize": False,
            "requires_grad": False,
            "head_dim": size,
            "precision": "torch.float32",
        }
    return {"config_groups": groups}


class InputTransforms:
    """What a ``quantization_config`` says of transforms at run time.

    Args:
        config: The ``quantization_config``.

    Raises:
        FormatError: It says another transform than those of inputs by Sylvester's matrix, or makes no sense.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        told = config.get(TRANSFORM_CONFIG) or {}
        groups = told.get("config_groups", {}) if isinstance(told, Mapping) else None
        if not isinstance(groups, Mapping):
            raise FormatError(f"{TRANSFORM_CONFIG} has no table 'config_groups'.")
        self._listed: list[tuple[str, NamePatterns, NamePatterns, int | None]] = []
        for name, group in groups.items():
            places = group.get("apply") if isinstance(group, Mapping) else None
            if not isinstance(places, list) or not all(isinstance(place, Mapping) for place in places):
                raise FormatError(f"The group {name[:100]!r} of {TRANSFORM_CONFIG} has no list of tables 'apply'.")
            for place in places:
                if place.get("location") not in _DONE_BEFORE:
                    self._listed.append((name, *_read(name, group, place)))

    def size(self, module: str, in_features: int) -> int:
        """Channels of a module's input that are mixed at run time; 0 for none.

        Raises:
            FormatError: Two transforms are meant for it, or one that is of no power of two that divides its inputs.
        """
        meant = [
            size
            for _, targets, ignored, size in self._listed
            if targets.first(module) is not None and not _in(ignored, module)
        ]
        if len(meant) > 1:
            raise FormatError(f"{TRANSFORM_CONFIG} has the input of {module} turned {len(meant)} times.")
        if not meant:
            return 0
        size = meant[0] or in_features
        if in_features % size or size & (size - 1) or size > LARGEST_TRANSFORM:
            raise FormatError(
                f"{TRANSFORM_CONFIG} has the {in_features} inputs of {module} turned in blocks of {size}; goldstick "
                f"turns them in blocks of a power of two that divides them, up to {LARGEST_TRANSFORM}."
            )
        return size

    def idle(self, modules: Iterable[str]) -> list[str]:
        """Names of the groups that mean none of these modules at one of their places."""
        every = list(modules)
        return [
            name
            for name, targets, ignored, _ in self._listed
            if not any(targets.first(module) is not None and not _in(ignored, module) for module in every)
        ]


def _in(patterns: NamePatterns, module: str) -> bool:
    return patterns.first(module) is not None


def _read(
    name: str, group: Mapping[str, Any], place: Mapping[str, Any]
) -> tuple[NamePatterns, NamePatterns, int | None]:
    size, where = group.get("head_dim"), place.get("location")
    other = group.get("type") != "hadamard" or group.get("randomize") or group.get("requires_grad")
    if other or where != "input":
        raise FormatError(
            f"The group {name[:100]!r} of {TRANSFORM_CONFIG} has a transform of type {shown(group.get('type'))} at "
            f"{shown(where)}; goldstick turns the inputs of layers by 'hadamard' without 'randomize' and "
            "'requires_grad' only."
        )
    if size is not None and (type(size) is not int or size < 1):
        raise FormatError(f"The group {name[:100]!r} of {TRANSFORM_CONFIG} has the head_dim {shown(size)}.")
    lists = [[one] if isinstance(one := place.get(key) or [], str) else one for key in ("targets", "ignore")]
    for listed in lists:
        if not isinstance(listed, list) or not all(isinstance(target, str) for target in listed):
            raise FormatError(f"The group {name[:100]!r} of {TRANSFORM_CONFIG} has targets that are no list of names.")
        if any(not target.startswith("re:") and "." not in target and target[:1].isupper() for target in listed):
            raise FormatError(
                f"The group {name[:100]!r} of {TRANSFORM_CONFIG} names a class; goldstick takes names of layers."
            )
    return NamePatterns(lists[0]), NamePatterns(lists[1]), size
