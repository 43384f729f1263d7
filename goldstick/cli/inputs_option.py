"""The option that names inputs to try a model with."""

from __future__ import annotations

from pathlib import Path

import click

INPUTS = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A .safetensors or .npz file with a tensor for each argument of the model's forward, to try it with.",
)
