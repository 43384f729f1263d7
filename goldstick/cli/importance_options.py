"""The options that name importance matrices."""

from __future__ import annotations

from pathlib import Path

import click

IMPORTANCE = click.option(
    "--importance",
    type=click.Path(),
    metavar="FILE.gguf",
    help="An importance matrix in the place of calibration data, for recipes with the word imatrix.",
)
SAVE_IMPORTANCE = click.option(
    "--save-importance",
    type=click.Path(path_type=Path),
    metavar="FILE.gguf",
    help="Keep how large the inputs were in calibration, as an importance matrix for llama.cpp's tools.",
)
