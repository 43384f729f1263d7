"""Whether a run can measure the importance matrix that is asked of it; said before it begins."""

from __future__ import annotations

from pathlib import Path

from goldstick.checkpoint.gguf.writer import require_package
from goldstick.errors import OutputError, UsageError
from goldstick.jobs.load.importance import GgufPlaces, refuse_changed_inputs
from goldstick.jobs.plan.plan import Plan


def check_importance(plan: Plan, file: Path, *, overwrite: bool) -> None:
    """Refuse what would be found out at the end of the run.

    Args:
        plan: What the run does.
        file: Where the importance matrix is to be written.
        overwrite: Whether it may be replaced.

    Raises:
        UsageError: No stage looks at data, or the package ``gguf`` is not installed.
        RecipeError: A stage changes the inputs.
        FormatError: The model, or a layer, has no place in GGUF files.
        OutputError: The file exists, or its folder does not.
    """
    require_package()
    observed = [found.site for found in plan.resolution.assignments.values() if found.stage.needs_inputs(found.scheme)]
    if not observed:
        raise UsageError(
            "No stage of this recipe looks at data, so there is nothing to save as an importance matrix. Take a recipe "
            "such as imatrix-q4_k_m."
        )
    why = "an importance matrix says what the inputs of the model's own layers are"
    refuse_changed_inputs(plan.resolution, why)
    places = GgufPlaces(plan.network)
    for site in observed:
        places.of_site(site)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise OutputError(f"{file} cannot be written: {'it is' if file.is_dir() else 'there is no such'} directory.")
    if file.exists() and not overwrite:
        raise OutputError(f"{file} exists already. Choose another file for the importance matrix, or give --overwrite.")


def require_importance(file: Path | None, output: Path) -> None:
    """Say so where a finished run is asked once more for what it measured, and did not keep.

    Raises:
        OutputError: There is no such file.
    """
    if file is not None and not file.exists():
        raise OutputError(
            f"The run that made {output} is finished, and what it measured is no longer known. Give another -o to "
            f"measure it again for {file}."
        )
