"""What a real model is to the table: packages, a float checkpoint made of them, recipes, outputs, and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from goldstick.evaluation.metrics import Items

FLOAT = "float"


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where things lie.

    Attributes:
        site: The packages' folder, site-packages of their own environment.
        build: What is made for this model.
        shared: The shared data.
    """

    site: Path
    build: Path
    shared: Path

    def path(self, name: str) -> Path:
        """A file or folder that is made."""
        return self.build / name


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to compress a model.

    Attributes:
        name: What the table calls it.
        arguments: Of ``goldstick quantize``, without model and output; or the recipe alone for plain modules.
    """

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """A published model.

    Attributes:
        name: What the command line calls it.
        title: What the table calls it.
        packages: What is installed for it, each with its version.
        licence: Of the weights, as their package says.
        task: What is measured, in a sentence.
        variants: The ways to compress it.
        prepare: Makes ``float`` in the workplace, and whatever the variants' arguments name.
        load: A float or compressed model from its folder.
        compress: Makes a plain module's compressed folder; None where ``goldstick quantize`` does.
        outputs: What it gives for the evaluation data.
        score: Metrics, item by item, from its outputs and those of the float model.
        lower_is_better: Metrics that count errors.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    licence: str
    task: str
    variants: tuple[Variant, ...]
    prepare: Callable[[Workplace], None]
    load: Callable[[Workplace, Path], nn.Module]
    outputs: Callable[[Workplace, nn.Module], Sequence[Any]]
    score: Callable[[Workplace, Sequence[Any], Sequence[Any]], Mapping[str, Items]]
    compress: Callable[[Workplace, Variant, Path], None] | None = None
    lower_is_better: frozenset[str] = frozenset()
