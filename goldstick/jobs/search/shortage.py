"""Too little text for a search: what is short, in the words of a search's own settings."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from goldstick.calibration.data.samples import CalibrationData
from goldstick.errors import ShortageError
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.search.layers import Layers
from goldstick.recipes.calibration import Calibration

_ROWS, _RECIPE = "search_", "recipe_"
#: The fewest rows that judge.
_FEWEST = 2


def as_argument(setting: str, value: str) -> str:
    """A setting as :func:`goldstick.search` takes it: ``samples=8``, or ``calibration={'samples': 64}``."""
    name = setting.removeprefix(_ROWS)
    if name.startswith(_RECIPE):
        return f"calibration={{{name.removeprefix(_RECIPE)!r}: {value}}}"
    return f"{name}={value if value.isdigit() else repr(value)}" if value else name


def recipe_data(layers: Layers, settings: Calibration, model: nn.Module, data_dir: Path | None) -> CalibrationData:
    """The data that a recipe is calibrated on.

    Raises:
        DataError: They are missing, malformed or too few; the message says which settings of a search would help.
    """
    try:
        return calibration_data(settings, layers.directory, data_dir)(model)
    except ShortageError as error:
        ways = [way.replace("{", f"{{{_RECIPE}") for way in error.ways]
        ways += ["{method:rtn}"] if layers.method != "rtn" else []
        found = f"{error.found} to calibrate the recipe on"
        raise ShortageError(found, error.available, ways, as_argument) from error


def searched_rows(
    model: nn.Module, directory: Path, text: Calibration, data_dir: Path | None, searched: int, judging: int
) -> Tensor:
    """Rows of a text: ``searched`` to search on, and twice ``judging`` that judge, int64 [rows, tokens].

    Raises:
        DataError: The text is missing, malformed or too short; the message says which settings of a search would help.
    """
    asked = text.model_copy(update={"samples": searched + 2 * judging})
    try:
        return calibration_data(asked, directory, data_dir)(model).ids
    except ShortageError as error:
        others = [way for way in error.ways if not way.startswith(("{samples", "{allow_short"))]
        ways = [*_fewer_rows(error.available, searched, judging), *(way.replace("{", f"{{{_ROWS}") for way in others)]
        parts = [f"{searched} to search on"] if searched else []
        parts += [f"2 × {judging} to judge by"] if judging else []
        found = f"{error.found}, {' and '.join(parts)}"
        raise ShortageError(found, error.available, ways, as_argument) from error


def _fewer_rows(available: int, searched: int, judging: int) -> list[str]:
    """How the rows that there are can be divided, about as those were that were asked for."""
    least = bool(searched) + 2 * _FEWEST * bool(judging)
    if available < least:
        return []
    first = max(1, available * searched // (searched + 2 * judging)) if searched else 0
    second = max(_FEWEST, (available - first) // 2) if judging else 0
    first = available - 2 * second if searched else 0
    counts = [f"{{{_ROWS}samples:{min(first, searched)}}}"] if searched else []
    counts += [f"{{held_out_rows:{second}}}"] if judging else []
    return [" with ".join(counts)]
