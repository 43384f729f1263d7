"""``goldstick compare``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import click

from goldstick.cli.console import console, finite, print_json, progress_bar
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.processors import INPUT_BITS, THREADS, echo_input_bits, input_bits_record, use_processors
from goldstick.cli.several import prints, refuse_several
from goldstick.cli.streams import showing


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--dataset", metavar="PATH|NAME", help="Text to run both on; else the fixed inputs that proofs use.")
@INPUTS
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True, help="Samples of the text.")
@click.option("--seq-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of a sample.")
@click.option(
    "--threshold",
    type=float,
    callback=finite,
    default=10.0,
    show_default=True,
    help="SQNR in dB below which they have parted.",
)
@click.option("--depth", type=click.IntRange(0), default=3, show_default=True, help="Levels of the tree to print.")
@click.option("--attribute", is_flag=True, help="Split SECOND's loss by source and layer; takes --dataset.")
@click.option(
    "--generate",
    type=click.IntRange(1),
    metavar="N",
    help="Let both go on for N tokens from each sample; takes --dataset.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the whole tree.")
@click.option("--overwrite", is_flag=True, help="Replace FILE where it exists.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@INPUT_BITS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    first: str,
    second: str,
    dataset: str | None,
    inputs: Path | None,
    data_dir: str | None,
    samples: int,
    seq_len: int,
    threshold: float,
    depth: int,
    attribute: bool,
    generate: int | None,
    html: Path | None,
    overwrite: bool,
    threads: int | None,
    input_bits: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Run FIRST and SECOND on the same input and show where they part, module by module.

    Each is a float model or a checkpoint that goldstick loads; FIRST counts as right. One block of each is in memory
    at a time. With --attribute one part of SECOND at a time is put back to float, and with --generate both write on:
    both models are then in memory.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    use_processors(threads, input_bits)
    from goldstick.checkpoint.gguf.directory import checkpoint_directory
    from goldstick.core.json_files import check_writable, write_atomically
    from goldstick.core.ranks import Ranks
    from goldstick.hf.example_inputs import read_inputs
    from goldstick.jobs.compare.side_by_side import compare_models
    from goldstick.jobs.compare.side_by_side_generation import compare_generation
    from goldstick.jobs.load.find_model import REFERENCE, data_directory, find_model
    from goldstick.jobs.sensitivity.attribution import attribute as run_attribution
    from goldstick.recipes.calibration import Calibration
    from goldstick.report.attribution import print_attribution
    from goldstick.report.comparison_page import render_comparison
    from goldstick.report.comparison_tree import print_model_comparison
    from goldstick.report.generation import print_generation

    if dataset is not None and inputs is not None:
        raise click.UsageError("give --dataset or --inputs, not both: the models run on one of them")
    if dataset is None and (attribute or generate):
        raise click.UsageError("--attribute and --generate look at text: give --dataset PATH|NAME")
    if not attribute:
        refuse_several("goldstick compare' without '--attribute")
    if generate:
        refuse_several("goldstick compare --generate")
    if html is not None and prints():
        check_writable(html, overwrite=overwrite)
    text = Calibration(dataset=dataset, samples=samples, seq_len=seq_len) if dataset else None
    known = REFERENCE if REFERENCE in (first, second) else None
    with progress_bar(not as_json) as progress, contextlib.ExitStack() as stack:
        right, other = (stack.enter_context(checkpoint_directory(find_model(model))) for model in (first, second))
        where = data_directory(data_dir, known)
        given = read_inputs(inputs) if inputs is not None else None
        found = compare_models(
            right, other, text=text, inputs=given, data_dir=where, threshold=threshold, progress=progress
        )
        split = written = None
        if text is not None and attribute:
            split = run_attribution(right, other, text, data_dir=where, progress=progress, ranks=Ranks.joined())
        if text is not None and generate:
            written = compare_generation(right, other, text, generate, data_dir=where, progress=progress)
    if not prints():
        return
    found = dataclasses.replace(found, first=first, second=second)
    with showing(html):
        if as_json:
            more = {name: part.to_dict() for name, part in (("attribution", split), ("generation", written)) if part}
            print_json(found.to_dict() | more | input_bits_record())
        else:
            print_model_comparison(console(), found, depth)
            if split is not None:
                print_attribution(console(), split)
            if written is not None:
                print_generation(console(), written)
            echo_input_bits()
    if html is not None:
        write_atomically(html, render_comparison(found, split, written).encode(), replace=overwrite)
        with showing(html):
            if not as_json:
                click.echo(f"page: {html}")
