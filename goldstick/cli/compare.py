"""``goldstick compare``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from goldstick.cli.console import console, print_json, progress_bar


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--dataset", metavar="PATH|NAME", help="Text to run both on; else the fixed inputs that proofs use.")
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True, help="Samples of the text.")
@click.option("--seq-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of a sample.")
@click.option(
    "--threshold", type=float, default=10.0, show_default=True, help="SQNR in dB below which they have parted."
)
@click.option("--depth", type=click.IntRange(0), default=3, show_default=True, help="Levels of the tree to print.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the whole tree.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    first: str,
    second: str,
    dataset: str | None,
    data_dir: str | None,
    samples: int,
    seq_len: int,
    threshold: float,
    depth: int,
    html: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run FIRST and SECOND on the same input and show where they part, module by module.

    Each is a float model or a checkpoint that goldstick loads; FIRST counts as right. One block of each is in memory
    at a time.
    """
    from goldstick.formats.transformers_names import quiet_libraries

    quiet_libraries()
    if threads:
        import torch

        torch.set_num_threads(threads)
    from goldstick.pipeline.models import REFERENCE, data_directory, find_model
    from goldstick.pipeline.side_by_side import compare_models
    from goldstick.recipes.recipe import Calibration
    from goldstick.report.comparison_page import render_comparison
    from goldstick.report.comparison_tree import print_model_comparison
    from goldstick.report.storage import write_atomically

    text = Calibration(dataset=dataset, samples=samples, seq_len=seq_len) if dataset else None
    known = REFERENCE if REFERENCE in (first, second) else None
    with progress_bar(not as_json) as progress:
        found = compare_models(
            find_model(first),
            find_model(second),
            text=text,
            data_dir=data_directory(data_dir, known),
            threshold=threshold,
            progress=progress,
        )
    found = dataclasses.replace(found, first=first, second=second)
    if html is not None:
        write_atomically(html, render_comparison(found).encode())
    if as_json:
        print_json(found.to_dict())
        return
    print_model_comparison(console(), found, depth)
    if html is not None:
        click.echo(f"page: {html}")
