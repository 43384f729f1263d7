"""``goldstick export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from goldstick.cli.console import console, print_json, progress_bar
from goldstick.cli.format_option import OWN_FORMATS, FormatName
from goldstick.cli.in_place import naming_what_is_in_place
from goldstick.cli.memory_size import memory_size
from goldstick.cli.processors import use_processors
from goldstick.cli.push import push
from goldstick.cli.several import prints
from goldstick.cli.streams import showing
from goldstick.cli.unused import note_private
from goldstick.core.counts import counted
from goldstick.formats import GRAPHS


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    required=True,
    metavar="F",
    type=FormatName(*GRAPHS.own_names),
    help=f"Storage format: {OWN_FORMATS}; or {' or '.join(GRAPHS.own_names)}, a network for other runtimes.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The directory to make.")
@click.option(
    "--proof",
    type=click.Choice(["outputs", "tensors"]),
    default="outputs",
    show_default=True,
    help="Compare what both checkpoints give, after their tensors, or their tensors alone.",
)
@click.option(
    "--max-shard-size", metavar="SIZE", callback=memory_size, help="Bytes a weight file may have, such as 2GB."
)
@click.option("--overwrite", is_flag=True, help="Replace an output directory that goldstick wrote.")
@click.option("--push-to-hub", "repository", metavar="OWNER/NAME", help="Upload the finished checkpoint there.")
@click.option("--private", is_flag=True, help="Make that repository a private one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    directory: Path,
    format_: str,
    output: Path,
    proof: Literal["outputs", "tensors"],
    max_shard_size: int | None,
    overwrite: bool,
    repository: str | None,
    private: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Store a compressed checkpoint in another format, without any loss.

    DIRECTORY is a checkpoint in one of the formats, made by goldstick or by another tool. Codes, scales and zeros stay
    what they are; where a format cannot hold them, nothing is written. The network of an encoder or a classifier can be
    stored with them, for runtimes without Python (docs/onnx.md); its outputs are always compared.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick import api
    from goldstick.checkpoint.hub import check_repository
    from goldstick.core.freed_memory import give_large_blocks_back
    from goldstick.report.words import format_bytes

    check_repository(repository)
    use_processors()
    note_private(private, repository is not None)
    give_large_blocks_back()
    with naming_what_is_in_place((output,), repository), progress_bar(not as_json) as progress:
        made = api.export(
            directory, format_, output=output, overwrite=overwrite, proof=proof, max_shard_size=max_shard_size,
            progress=progress,
        )  # fmt: skip
    if not prints():
        return
    with showing(output):
        if as_json:
            import json

            print_json({"directory": str(output), "report": json.loads(made.report.to_json())})
        else:
            layers = sum(record.scheme is not None for record in made.report.layers)
            size = format_bytes(made.report.size.bytes_after)
            console().print(f"{counted(layers, 'layer')} stored as {made.report.format}, {size}")
            for warning in made.report.warnings:
                click.echo(f"note: {warning}")
            click.echo(f"checkpoint: {output}\nreport: {output / 'report.json'}")
    if repository is not None:
        push(output, repository, private=private, as_json=as_json)
