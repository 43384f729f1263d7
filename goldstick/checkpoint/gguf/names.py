"""Names of tensors in GGUF files and in transformers' checkpoints, by the ``gguf`` package's own table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.architectures import ARCHITECTURES
from goldstick.checkpoint.gguf.arrangement import Split
from goldstick.checkpoint.gguf.writer import gguf_package
from goldstick.errors import FormatError

_EXPERT = re.compile(r"\.experts\.(0|[1-9]\d*)\.")
_GGML_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(.+)")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor of a checkpoint lies in a GGUF file.

    Attributes:
        names: The tensors of the file that it is, one or two.
        expert: Which of the matrices stacked in them it is; ``None`` where it is all.
        split: How it holds the rows of two.
    """

    names: tuple[str, ...]
    expert: int | None = None
    split: Split | None = None

    @property
    def kind(self) -> str:
        """Name of the first, without the number of the block: ``attn_q.weight``."""
        match = _GGML_BLOCK.fullmatch(self.names[0])
        return match[2] if match else self.names[0]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a tensor of a GGUF file is in a checkpoint.

    Attributes:
        name: Name of the tensor; ``{}`` stands for the number of an expert.
        place: Where that lies.
        part: Which of the tensors there the one of the file is.
    """

    name: str
    place: Place
    part: int

    @property
    def stacked(self) -> bool:
        """Whether the tensor of the file holds a matrix for every expert, each a tensor of its own in a checkpoint."""
        return "{}" in self.name


def place_of(name: str, architecture: Architecture) -> Place:
    """Where a tensor of transformers' checkpoints lies in a GGUF file.

    Raises:
        FormatError: The architecture has no such tensor.
        UsageError: The package ``gguf`` is not installed.
    """
    found = _place(name, architecture)
    if found is not None:
        return found
    remedy = "Use --format compressed-tensors or native."
    inner = architecture.block.partition(".")[0]
    if _place(f"{inner}.{name}", architecture) is not None:
        remedy = (
            f"As a {architecture.classes[0]} saves it, it is called '{inner}.{name}': load the model with transformers "
            f"and call save_pretrained. Or: {remedy[0].lower()}{remedy[1:]}"
        )
    raise FormatError(
        f"The architecture {architecture.name!r} of GGUF files has no place for the tensor {name!r}. {remedy}"
    )


def origin_of(name: str, architecture: Architecture) -> Origin:
    """What a tensor of a GGUF file is in transformers' checkpoints.

    Raises:
        FormatError: The architecture has no such tensor.
        UsageError: The package ``gguf`` is not installed.
    """
    match = _GGML_BLOCK.fullmatch(name)
    inner = match[2] if match else name
    found = _table_back(_index(architecture)).get((bool(match), inner))
    if found is None:
        raise FormatError(
            f"The file holds the tensor {name!r}, which the architecture {architecture.name!r} does not have."
        )
    template, place = found
    before, block = (f"{architecture.block}.{match[1]}.", f"blk.{match[1]}.") if match else ("", "")
    names = tuple(f"{block}{each}" for each in place.names)
    return Origin(name=before + template, place=Place(names=names, split=place.split), part=place.names.index(inner))


def _place(name: str, architecture: Architecture) -> Place | None:
    match = re.fullmatch(rf"{re.escape(architecture.block)}\.(0|[1-9]\d*)\.(.+)", name)
    inner = match[2] if match else name
    expert = _EXPERT.search(inner)
    template = _EXPERT.sub(".experts.{}.", inner) if expert else inner
    found = _table(_index(architecture)).get((bool(match), template))
    if found is None:
        return None
    block = f"blk.{match[1]}." if match else ""
    return Place(
        names=tuple(f"{block}{each}" for each in found.names),
        expert=int(expert[1]) if expert else None,
        split=found.split,
    )


def _index(architecture: Architecture) -> int:
    return next(number for number, each in enumerate(ARCHITECTURES) if each is architecture)


@cache
def _table(index: int) -> Mapping[tuple[bool, str], Place]:
    """(whether it lies in a block, its name there) → place, less the block."""
    architecture = ARCHITECTURES[index]
    package = gguf_package("GGUF files are read and written")
    numbers = {name: number for number, name in package.MODEL_ARCH_NAMES.items()}
    theirs = package.get_tensor_name_map(numbers[architecture.name], 1)
    table: dict[tuple[bool, str], Place] = {}
    for within, modules in ((False, architecture.outer), (True, architecture.modules)):
        for module in modules:
            plain = module.replace(".{}", "")
            full = f"{architecture.block}.0.{plain}" if within else plain
            found = theirs.get_name(full)
            if found is None:
                continue
            found = found.removeprefix("blk.0.")
            for leaf in ("weight", "bias") if module in architecture.biases else ("weight",):
                table[within, f"{module}.{leaf}"] = Place(names=(f"{found}.{leaf}",))
    for within, named in ((True, architecture.loose), (False, architecture.outside)):
        table |= {(within, name): Place(names=(found,)) for name, found in named.items()}
    for name, (split, *both) in architecture.splits.items():
        table[True, name] = Place(names=tuple(both), split=split)
    return table


@cache
def _table_back(index: int) -> Mapping[tuple[bool, str], tuple[str, Place]]:
    return {
        (within, name): (template, place) for (within, template), place in _table(index).items() for name in place.names
    }
