"""What an evaluation says of a model beside its figures: its name, its size, and how it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from goldstick.errors import DataError
from goldstick.kernels.input_bits import fewer_bits
from goldstick.report.file_names import FILE_NAME
from goldstick.report.report import Report


def about_model(name: str, directory: Path) -> dict[str, Any]:
    """What is known of a checkpoint directory without reading its weights.

    Args:
        name: What the user called it.
        directory: Where it lies.

    Returns:
        ``name``, ``bytes`` of its weight files, ``input_bits`` where float inputs are rounded to fewer than 16, and of
        a checkpoint with a report of goldstick ``recipe`` (its stages) and ``bits_per_weight``.
    """
    found: dict[str, Any] = {
        "name": name,
        "bytes": sum(path.stat().st_size for path in sorted(directory.glob("*.safetensors"))),
    }
    if bits := fewer_bits():
        found["input_bits"] = bits
    if (directory / FILE_NAME).is_file():
        try:
            report = Report.read(directory)
        except DataError:  # another tool's, or a damaged one: the figures do not depend on it
            return found
        stages = [stage for entry in report.recipe.get("stages", ()) for stage in entry]
        found |= {"recipe": " → ".join(stages)} if stages else {}
        if report.size.bits_per_weight is not None:
            found["bits_per_weight"] = report.size.bits_per_weight
    return found
