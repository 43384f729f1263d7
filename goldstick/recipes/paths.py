"""Paths in a recipe's file: they count from the folder of that file, wherever it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def placed(recipe: Any, folder: Path) -> Any:
    """What a recipe's file holds, with the paths of ``calibration.dataset`` and ``evaluate`` seen from here.

    A data set that is a name (``wikitext2``, or ``owner/name`` of the hub) stays one; it is a path where something lies
    there, and where it ends as files do. ``precision.sensitivity`` is read from ``folder`` later.

    Args:
        recipe: The parsed file; anything but a mapping is left to the checks that follow.
        folder: Where the file lies.
    """
    if not isinstance(recipe, Mapping):
        return recipe
    found = dict(recipe)
    calibration, tasks = found.get("calibration"), found.get("evaluate")
    if isinstance(calibration, Mapping) and isinstance(calibration.get("dataset"), str):
        found["calibration"] = {**calibration, "dataset": _dataset(calibration["dataset"], folder)}
    if isinstance(tasks, list) and all(isinstance(task, str) for task in tasks) and tasks:
        from goldstick.evaluation.find_tasks import from_folder

        found["evaluate"] = list(from_folder(tasks, folder))
    return found


def _dataset(name: str, folder: Path) -> str:
    from goldstick.calibration.data.sources import KNOWN

    path = folder / name
    if name in KNOWN and not path.is_file():  # a folder of that name may well lie here: the data themselves
        return name
    return str(path) if path.exists() or Path(name).suffix else name
