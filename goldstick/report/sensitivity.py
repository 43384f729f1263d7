"""What rounding single layers does to a model's output: the contents of a sensitivity file, and their table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldstick.core.json_files import parse_json
from goldstick.errors import DataError
from goldstick.report.report import Report
from goldstick.report.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console

VERSION = 1

#: What a layer was rounded to: so many bits of the recipe's grid, or a scheme by name.
Choice = int | str


@dataclass(frozen=True, kw_only=True)
class LayerSensitivity:
    """One layer, rounded alone.

    Args:
        name: its name, as recipes call it.
        shape: the shape of its weight.
        elements: the number of its weights.
        kl: bits or scheme → how far the predictions of the one with it rounded are from the float model's: mean KL(p ‖
            q) per token in nats, or what else ``measure`` says.
        bits_per_weight: bits or scheme → stored bits of a weight, scales and zeros counted.
    """

    name: str
    shape: tuple[int, ...]
    elements: int
    kl: Mapping[Choice, float]
    bits_per_weight: Mapping[Choice, float]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Every layer that a recipe rounds, at several widths or to several schemes, each alone.

    Args:
        model: the model, as the user named it.
        inputs: the text, in words.
        tokens: how many predictions were compared.
        grid: ``granularity``, ``group_size`` and ``symmetric`` of the recipe's grid, and its ``range_search``.
        widths: the bits that were tried, the fewest first, then the schemes.
        layers: the layers in the model's order.
        measure: ``kl``, or ``squared error`` of the model's outputs, relative to their squares.
    """

    model: str
    inputs: str
    tokens: int
    grid: Mapping[str, Any]
    widths: tuple[Choice, ...]
    layers: tuple[LayerSensitivity, ...]
    measure: str = "kl"

    @property
    def unit(self) -> str:
        """What a figure is counted in, in a word."""
        return "nats" if self.measure == "kl" else "of the outputs' squares"

    @property
    def figure(self) -> str:
        """What a figure is."""
        return "Mean KL per prediction (nats)" if self.measure == "kl" else "Squared error of the outputs, relative"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as recipes read it; widths are strings there."""
        layers = [
            asdict(layer) | {"kl": _with_text(layer.kl), "bits_per_weight": _with_text(layer.bits_per_weight)}
            for layer in self.layers
        ]
        return {"goldstick_sensitivity": VERSION, **asdict(self), "layers": layers}

    @classmethod
    def from_dict(cls, data: Any) -> Sensitivity:
        """Read what `to_dict` gave; DataError for anything else."""
        try:
            if data["goldstick_sensitivity"] != VERSION:
                raise DataError(f"a sensitivity file of version {data['goldstick_sensitivity']}, not {VERSION}")
            layers = tuple(
                LayerSensitivity(
                    name=layer["name"],
                    shape=tuple(layer["shape"]),
                    elements=layer["elements"],
                    kl=_from_text(layer["kl"]),
                    bits_per_weight=_from_text(layer["bits_per_weight"]),
                )
                for layer in data["layers"]
            )
            return cls(
                model=data["model"],
                inputs=data["inputs"],
                tokens=data["tokens"],
                grid=data["grid"],
                widths=tuple(data["widths"]),
                layers=layers,
                measure=str(data.get("measure", "kl")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"no sensitivity file of goldstick ({type(error).__name__}: {error})") from error


def read_sensitivity(path: Path) -> Sensitivity:
    """Read a sensitivity file; DataError, naming it, where it is none."""
    try:
        return Sensitivity.from_dict(parse_json(path.read_text(encoding="utf-8"), "the sensitivity file"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def refuse_another_network(found: Sensitivity, report: Report) -> None:
    """Refuse a sensitivity whose layers are not those of a report; DataError, naming the first.

    The layers of a report are parameters: ``name`` or ``name.weight``. Where channels were cut, the shape before
    counts.
    """
    weights = {layer.name: layer for layer in report.layers}
    for layer in found.layers:
        held = weights.get(layer.name) or weights.get(f"{layer.name}.weight")
        before = str(held.notes.get("shape_before", "")) if held else ""
        elements = math.prod(map(int, before.split("×"))) if before else held.elements if held else 0
        if elements != layer.elements:
            here = f"has {elements:,}" if held else "has no such layer"
            raise DataError(
                f"it was measured on another model, {found.model!r}: {layer.name} has {layer.elements:,} weights "
                f"there, and {report.model!r} of the report {here}; measure that one with 'goldstick sensitivity'"
            )


def print_sensitivity(console: Console, found: Sensitivity) -> None:
    """Print a line for each layer: its figure at each width."""
    columns = ("layer", "shape", *(f"<{in_words(choice)}" for choice in found.widths))
    cells = [
        [layer.name, "×".join(map(str, layer.shape)), *(f"{layer.kl[choice]:.2e}" for choice in found.widths)]
        for layer in found.layers
    ]
    print_table(console, f"{found.figure}, each layer rounded alone, on {found.inputs}", columns, cells)


def in_words(choice: Choice) -> str:
    """``4 bits``, or the name of a scheme."""
    return f"{choice} bits" if isinstance(choice, int) else choice


def as_choice(text: str) -> Choice:
    """What a file calls a choice, as a choice; inverse of ``str``."""
    return int(text) if text.isdecimal() else text


def _with_text(values: Mapping[Choice, float]) -> dict[str, float]:
    return {str(choice): value for choice, value in values.items()}


def _from_text(values: Mapping[str, float]) -> dict[Choice, float]:
    return {as_choice(choice): value for choice, value in values.items()}
