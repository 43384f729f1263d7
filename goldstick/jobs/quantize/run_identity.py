"""What a run is of: equal identities, equal checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.calibration.data.samples import CalibrationSet
from goldstick.checkpoint.file_state import file_sha256
from goldstick.core.json_files import dump_json
from goldstick.core.versions import versions
from goldstick.errors import GoldstickError, OutputError
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.load.importance import importance_files
from goldstick.jobs.plan.plan import Plan
from goldstick.report import Report


def run_identity(
    plan: Plan, data: CalibrationSet | None, files: Mapping[str, str], device: torch.device
) -> dict[str, str]:
    """What a run of a plan is of, by what the user calls it; one that differs in any of it gives something else.

    Args:
        plan: What is done.
        data: Calibration data; ``None`` where no stage looks at any.
        files: sha256 of every file of the source, by its name.
        device: Where it runs; GPUs round otherwise than processors.
    """
    return {
        "recipe": digest_of(plan.recipe.model_dump(mode="json")),
        **{f"source file {name}": digest for name, digest in files.items()},
        "set of source files": digest_of(sorted(files)),
        **{f"importance matrix {file}": file_sha256(Path(file)) for file in importance_files(plan.resolution)},
        "calibration data": data.fingerprint if data is not None else "none",
        "kind of device": device.type,
        "version of goldstick or a library": digest_of(versions()),
    }


def finished_report(output: Path, run: Mapping[str, str]) -> Report | None:
    """The report in ``output``, where that is what a finished run of ``run`` gave; ``None`` where nothing says so.

    Raises:
        OutputError: A run of something else made it.
    """
    try:
        report = read_report(output)
    except GoldstickError:  # no checkpoint of goldstick, or no whole one
        return None
    changed = [name for name in run if report.run.get(name) != run[name]]
    if report.run and changed:
        raise OutputError(
            f"The output {output} exists already and was made with another {' and another '.join(changed)}. Choose "
            "another -o, or give --overwrite."
        )
    return report if report.run else None


def digest_of(value: Any) -> str:
    """The sha256 of plain data."""
    return hashlib.sha256(dump_json(value).encode()).hexdigest()
