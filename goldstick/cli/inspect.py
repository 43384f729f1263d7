"""``goldstick inspect``, ``goldstick verify`` and ``goldstick report``."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

import click

from goldstick.cli.console import console, print_json
from goldstick.cli.processors import use_processors
from goldstick.cli.streams import showing
from goldstick.core.counts import counted
from goldstick.errors import DataError


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--verbose", "-v", is_flag=True, help="A line for every layer, without gathering equal ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(directory: Path, verbose: bool, as_json: bool) -> None:
    """Show a compressed checkpoint: layer, scheme, shape, bytes, bits per weight, error, and the kernels here."""
    from goldstick.jobs.inspect.inspect import read_report
    from goldstick.jobs.inspect.layer_backends import backend_words
    from goldstick.report.terminal import print_report

    report = read_report(directory)
    if as_json:
        import json

        from goldstick.evaluation.items import without_items

        print_json({**without_items(json.loads(report.to_json())), "kernels": backend_words(report)})
        return
    print_report(console(), report, verbose=verbose)
    origin = f"from {report.model} by goldstick {report.goldstick_version}" if report.recipe else "elsewhere"
    click.echo(f"format: {report.format}; made {origin}")
    click.echo(backend_words(report))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(directory: Path, as_json: bool) -> None:
    """Check a compressed checkpoint: the sha256 of every file, and its proof once more in a fresh process."""
    from goldstick.jobs.verify.verify import verify_checkpoint

    use_processors()
    found = verify_checkpoint(directory)
    if as_json:
        print_json(found)
        return
    if found["files"]:
        click.echo(f"sha256 as the manifest records it: {counted(found['files'], 'file')}")
    click.echo(found["proof"])


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--sensitivity",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take in what 'goldstick sensitivity -o FILE' found, as a heat map.",
)
@click.option("--overwrite", is_flag=True, help="Replace a report.html that goldstick did not render.")
def report(directory: Path, sensitivity: Path | None, overwrite: bool) -> None:
    """Render DIRECTORY's report.json anew as report.html, a page that opens from disk."""
    from goldstick.checkpoint.source import require_model
    from goldstick.report.page import check_page, write_page
    from goldstick.report.report import Report
    from goldstick.report.search_page import write_search_page

    require_model(directory, local=True)
    check_page(directory, overwrite)
    if sensitivity is not None:
        from goldstick.report.sensitivity import read_sensitivity, refuse_another_network

        found, read = read_sensitivity(sensitivity), Report.read(directory)
        try:
            refuse_another_network(found, read)
        except DataError as error:
            raise DataError(f"{sensitivity}: {error}") from error
        dataclasses.replace(read, sensitivity=found.to_dict()).write(directory)
    page = write_page(directory)
    with suppress(DataError):  # the report of an evaluation, which no search belongs to
        write_search_page(directory, Report.read(directory).search)
    with showing(page):
        click.echo(page)
