"""Further formats of one run: ``--format`` given more than once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from goldstick.errors import FormatError, UsageError

if TYPE_CHECKING:
    from goldstick.core.progress import Progress
    from goldstick.jobs.plan.plan import Plan
    from goldstick.jobs.proof.proof import ProofMethod


def further_directories(output: Path, formats: Sequence[str]) -> dict[str, Path]:
    """Format → the directory beside ``output`` that holds it, for every format after the first.

    Raises:
        UsageError: A format was given twice, or ``auto`` was given after another.
    """
    from goldstick.checkpoint.staging import located

    twice = [name for number, name in enumerate(formats) if name in formats[:number]]
    if twice:
        raise UsageError(f"--format {twice[0]} was given twice; name each format once.")
    if "auto" in formats[1:]:
        raise UsageError("--format auto chooses the first format; name the further ones.")
    output = located(output) if len(formats) > 1 else output
    return {name: output.with_name(f"{output.name}-{name}") for name in formats[1:]}


def refuse_formats(plan: Plan, formats: Sequence[str]) -> None:
    """See that every format can hold what a plan will give, before any weight is read.

    What depends on numbers that are not known yet, such as whether a scale is a float16 number, is seen by the export.

    Raises:
        FormatError: One cannot, with the layer and the reason.
        UsageError: It is what the plan's own format is.
    """
    from goldstick.formats import FORMATS
    from goldstick.jobs.plan.choose_format import refusal_words, refusals

    layers = [tensor.stored for tensor in plan.tensors if tensor.stored]
    for name in formats:
        if name == plan.format.name:
            raise UsageError(f"--format {name} is what the first format of this run comes to already.")
        reasons = refusals(FORMATS[name], layers, plan.resolution.ties)
        if reasons:
            raise FormatError(f"{refusal_words(FORMATS[name], reasons)} Leave --format {name} out.")


def export_further(
    output: Path, further: dict[str, Path], *, overwrite: bool, proof: ProofMethod, progress: Progress
) -> None:
    """Export a finished checkpoint into each of the further directories: of several processes the first, alone.

    The others may lie on machines that do not have the checkpoint.

    Raises:
        FormatError: A format cannot hold the numbers of the result; the finished checkpoint stays.
    """
    from goldstick import api

    for name, directory in further.items():
        try:
            api.export(
                output, name, output=directory, overwrite=overwrite, proof=proof, together=False, progress=progress
            )
        except FormatError as error:
            raise FormatError(f"{output} is finished, and --format {name} is not made: {error}") from error
