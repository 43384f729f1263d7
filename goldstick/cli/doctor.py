"""``goldstick doctor``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from goldstick.cli.console import console, print_json, progress_bar
from goldstick.cli.runtime_option import CHECKED_RUNTIME, TENSOR_PARALLEL, verdict_in_words
from goldstick.core.counts import counted

#: Places that a line of the table names; the others are counted, and listed with ``--json`` and ``--verbose``.
_NAMED = 3


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--source", metavar="MODEL", help="The model it was made from, to compare weights with.")
@CHECKED_RUNTIME
@TENSOR_PARALLEL
@click.option("--verbose", "-v", is_flag=True, help="Name every place, not the first three.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    directory: Path | None,
    source: str | None,
    runtime: str | None,
    tensor_parallel: int,
    verbose: bool,
    as_json: bool,
) -> None:
    """Look for what is wrong with a checkpoint, quantized by any tool, or in float; without one, with goldstick itself.

    Reads every tensor, one at a time: scales that are NaN or zero, dead groups, saturated codes, missing or extra
    tensors, a config that contradicts its tensors, ties, files that lie there twice. With --for, also whether the
    loaders of a program take it, by rules read from its source; that program is not needed. Exit codes: 0 no fault
    (remarks do not count), 1 faults. Without DIRECTORY, shows versions, compiled kernels, their instructions and
    threads; 1 where the kernels are missing.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    if directory is None:
        _show_surroundings(as_json)
        return
    from goldstick import api
    from goldstick.report.terminal import print_table

    with progress_bar(not as_json) as progress:
        found = api.doctor(
            directory, source=source, runtime=runtime, tensor_parallel=tensor_parallel, progress=progress
        )
    if as_json:
        print_json(found.to_dict())
    else:
        if found.findings:
            rows = [
                (finding.severity, finding.what, _places(finding.where, verbose), finding.remedy)
                for finding in found.findings
            ]
            print_table(console(), "Findings", ("severity", "what", "where", "remedy"), rows)
        faults = sum(finding.severity == "fault" for finding in found.findings)
        click.echo(
            f"{found.format}, {counted(found.tensors, 'tensor')}, "
            f"{counted(found.layers, 'quantized matrix', 'quantized matrices')}: "
            f"{counted(faults, 'fault')}, {counted(len(found.findings) - faults, 'remark')}"
        )
        if found.verdict is not None:
            click.echo("\n".join(verdict_in_words(found.verdict)))
    if not found.healthy:
        sys.exit(1)


def _show_surroundings(as_json: bool) -> None:
    from goldstick.jobs.doctor.surroundings import surroundings, surroundings_in_words

    found = surroundings()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(surroundings_in_words(found)))
    if found["kernels_missing"]:
        sys.exit(1)


def _places(where: tuple[str, ...], verbose: bool) -> str:
    shown = where if verbose else where[:_NAMED]
    more = len(where) - len(shown)
    return "; ".join(shown) + (f" and {more} more" if more else "")
