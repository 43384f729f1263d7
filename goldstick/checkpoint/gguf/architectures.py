"""The architectures that GGUF files are written and read for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.dense import DENSE
from goldstick.checkpoint.gguf.mixtures import MIXTURES
from goldstick.checkpoint.gguf.older import OLDER
from goldstick.errors import FormatError

ARCHITECTURES = (*DENSE, *MIXTURES, *OLDER)


def architecture_of_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a config.json.

    Raises:
        FormatError: It is none of those known here.
    """
    classes = config.get("architectures") or []
    for architecture in ARCHITECTURES:
        told = all(config.get(setting) == value for setting, value in architecture.when.items())
        if told and set(classes) & set(architecture.classes):
            return architecture
    known = ", ".join(dict.fromkeys(name for architecture in ARCHITECTURES for name in architecture.classes))
    named = " or ".join(map(str, classes)) or "a model without a class"
    raise FormatError(
        f"goldstick writes GGUF files of {known}, and not of {named}. Use --format compressed-tensors or native."
    )


def architecture_of_file(name: object, holds: Collection[str]) -> Architecture:
    """The architecture of a GGUF file.

    Args:
        name: What it calls it.
        holds: Names of its tensors and entries.

    Raises:
        FormatError: It is none of those known here.
    """
    named = [architecture for architecture in ARCHITECTURES if architecture.name == name]
    for architecture in sorted(named, key=lambda each: not each.marker):
        if not architecture.marker or any(each.endswith(architecture.marker) for each in holds):
            return architecture
    known = ", ".join(dict.fromkeys(architecture.name for architecture in ARCHITECTURES))
    raise FormatError(
        f"The file holds a model of the architecture {name!r}, and goldstick reads {known} from GGUF files."
    )
