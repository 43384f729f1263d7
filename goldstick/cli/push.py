"""Pushing a finished checkpoint, and saying so."""

from __future__ import annotations

from pathlib import Path

import click

from goldstick.cli.streams import showing


def push(output: Path, repository: str, *, private: bool, as_json: bool) -> None:
    """Upload a finished checkpoint; whatever ends it early says that the checkpoint is there.

    Raises:
        OutputError: It was not pushed; the message says how to push it again.
    """
    from goldstick.checkpoint.hub import push_to_hub

    try:
        address = push_to_hub(output, repository, private=private)
    except (KeyboardInterrupt, SystemExit) as error:
        error.add_note(f"{output} is finished and in its place. 'hf upload {repository} {output}' pushes it.")
        raise
    with showing(output):
        click.echo(f"pushed: {address}", err=as_json)
