"""Which sizes a model can have at all for a runtime, and what one scheme for all gives: from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from goldstick.errors import UsageError
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.search.layers import FLOAT, Layers, find_layers
from goldstick.jobs.search.runnable import rules_of
from goldstick.jobs.search.runtimes import RuntimeName, runtime_to_search_for
from goldstick.jobs.search.target import Target
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """One scheme for all layers.

    Attributes:
        scheme: Its name.
        nbytes: Bytes of the weight files; headers are counted as those of the smallest choice.
        left: Layers that cannot become it, such as those whose inputs its groups do not divide; they stay float.
    """

    scheme: str
    nbytes: int
    left: int


@dataclass(frozen=True, kw_only=True)
class Possible:
    """What sizes there are.

    Attributes:
        asked: Bytes that were asked for.
        least: Bytes of the weight files where every layer is as small as it can be, exact.
        most: The same where every layer that can be quantized is, each to its largest scheme.
        source: Bytes of the source's tensors.
        weights: The number of the model's weights.
        layers: The number of layers that are chosen for.
        uniform: Every scheme, the smallest first.
    """

    asked: int
    least: int
    most: int
    source: int
    weights: int
    layers: int
    uniform: tuple[Uniform, ...]

    @property
    def possible(self) -> bool:
        """Whether files of at most what was asked can be made, and something must be rounded for it."""
        return self.least <= self.asked < self.source

    def bits(self, nbytes: int) -> float:
        """Bits for each weight of the model."""
        return 8 * nbytes / self.weights

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"possible": self.possible}


def possible_sizes(
    directory: Path,
    target: Target,
    *,
    runtime: RuntimeName = "goldstick",
    tensor_parallel: int = 1,
    schemes: Sequence[str] = (),
) -> Possible:
    """Which sizes there are, and whether what is asked for is among them.

    Args:
        directory: A float checkpoint; its config and file headers are read.
        target: A size, bits a weight or a part of the size.
        runtime: What the result is for.
        tensor_parallel: Over how many devices that splits layers.
        schemes: What to choose among, instead of all that the runtime runs.

    Raises:
        UsageError: There is no such runtime, or no rules of how it splits layers are known.
        RecipeError: A scheme is unknown, or fits no layer.
        SourceError: The directory is no readable float model.
    """
    layers = find_layers(
        directory, runtime_to_search_for(runtime), method="rtn", calibration=Calibration(), schemes=schemes,
        rules=rules_of(runtime, tensor_parallel),
    )  # fmt: skip
    quantized = [[scheme for scheme in group.nbytes if scheme != FLOAT] or [FLOAT] for group in layers.groups]
    smallest = [min(names, key=group.nbytes.__getitem__) for names, group in zip(quantized, layers.groups, strict=True)]
    largest = [max(names, key=group.nbytes.__getitem__) for names, group in zip(quantized, layers.groups, strict=True)]
    least = _file_bytes(layers, smallest)
    beside = least - _tensor_bytes(layers, smallest)
    uniform = []
    for scheme in dict.fromkeys(scheme for names in quantized for scheme in names if scheme != FLOAT):
        chosen = [scheme if scheme in group.nbytes else FLOAT for group in layers.groups]
        uniform.append(Uniform(scheme=scheme, nbytes=_tensor_bytes(layers, chosen) + beside, left=chosen.count(FLOAT)))
    return Possible(
        asked=target.bytes_of(layers),
        least=least,
        most=_file_bytes(layers, largest),
        source=layers.source,
        weights=layers.weights,
        layers=len(layers.groups),
        uniform=tuple(sorted(uniform, key=lambda one: one.nbytes)),
    )


def _tensor_bytes(layers: Layers, chosen: Sequence[str]) -> int:
    return layers.fixed + sum(group.nbytes[name] for group, name in zip(layers.groups, chosen, strict=True))


def _file_bytes(layers: Layers, chosen: Sequence[str]) -> int:
    sites = {site.name: name for group, name in zip(layers.groups, chosen, strict=True) for site in group.sites}
    return weight_file_bytes(make_plan(layers.directory, layers.recipe(sites)))


def refuse_size(layers: Layers, size: int) -> None:
    """Refuse a size below the smallest that can be made, or at which nothing is rounded; UsageError, which names it."""
    if size >= layers.source:
        raise UsageError(
            f"{size:,} bytes hold the model as it is ({layers.source:,} bytes, "
            f"{8 * layers.source / layers.weights:.3g} bits a weight), so nothing would be rounded. Ask for less."
        )
    least = smallest(layers)
    if size < least:
        raise UsageError(
            f"{size:,} bytes are less than the smallest this model can be in the format {layers.runtime.format}: "
            f"{least:,} bytes ({8 * least / layers.weights:.3g} bits a weight). Ask for more, or give smaller schemes."
        )


def smallest(layers: Layers) -> int:
    """Bytes of the weight files where each layer is as small as it can be."""
    chosen = {site.name: next(iter(group.nbytes)) for group in layers.groups for site in group.sites}
    return weight_file_bytes(make_plan(layers.directory, layers.recipe(chosen)))
