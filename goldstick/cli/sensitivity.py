"""``goldstick sensitivity``."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import click

from goldstick.cli.console import console, print_json, progress_bar
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.memory_size import memory_size
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.renamed_option import renamed_option
from goldstick.cli.search_options import share
from goldstick.cli.several import prints
from goldstick.cli.streams import showing


def _widths(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """``2,3,4`` as (2, 3, 4)."""
    if value is None:
        return ()
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of bits; write 2,3,4,8") from None


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """``fp8a16,q4_k`` as two names."""
    return tuple(part.strip() for part in value.split(",")) if value else ()


def _size_or_share(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
    """``60%`` as a part of the size, anything else as bytes."""
    if value is None or value.endswith("%"):
        return None if value is None else {"share": share(context, parameter, value)}
    return {"size": memory_size(context, parameter, value)}


@click.command()
@click.argument("model")
@click.option(
    "--recipe",
    "-r",
    default="rtn-w4a16-g128",
    show_default=True,
    metavar="NAME|FILE",
    help="Which layers, on which grid; its bits do not matter.",
)
@click.option(
    "--bits",
    callback=_widths,
    help="The widths to try of a grid of integers; 2,3,4,8 if nothing is said. Other schemes are tried as they are.",
)
@click.option("--schemes", callback=_names, metavar="NAMES", help="Schemes to try, such as fp8a16,nvfp4a16,q4_k,q6_k.")
@click.option(
    "--dataset",
    "--data",
    metavar="PATH|NAME",
    help="Text, or data of the kind that MODEL reads; else the recipe's calibration data, for 'reference' the bundled "
    "text.",
)
@INPUTS
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Samples of the data.")
@click.option("--seq-len", type=click.IntRange(2), default=256, show_default=True, help="Tokens of a sample.")
@click.option(
    "--recipe-for-size",
    metavar="SIZE|PERCENT",
    callback=_size_or_share,
    help="Search for the recipe of the least loss at 4GB or 60% of the size, among these widths, and print it.",
)
@click.option("--held-out-rows", type=click.IntRange(2), default=32, show_default=True, help="Rows that judge it.")
@renamed_option(
    "--group-size-mismatch",
    "--indivisible",
    type=click.Choice(["error", "smaller", "channel", "skip"]),
    help="What a layer becomes whose inputs the group size does not divide.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the JSON that a recipe's 'precision' reads.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with a heat map.")
@click.option("--overwrite", is_flag=True, help="Replace the files where they exist.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sensitivity(
    model: str,
    recipe: str,
    bits: tuple[int, ...],
    schemes: tuple[str, ...],
    dataset: str | None,
    inputs: Path | None,
    data_dir: str | None,
    samples: int,
    seq_len: int,
    recipe_for_size: dict[str, Any] | None,
    held_out_rows: int,
    group_size_mismatch: Literal["error", "smaller", "channel", "skip"] | None,
    output: Path | None,
    html: Path | None,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Round each layer of MODEL alone, at each width or to each scheme, and show how far the model's predictions move.

    MODEL is float; it is in memory as a whole, in float32. Predictions are those of tokens or of an image's class; of a
    model that makes none, its outputs count. A recipe with 'precision:
    {sensitivity: FILE, bits_per_weight: 4.5}' chooses each layer's bits or scheme by what is found. With
    --recipe-for-size 'goldstick search' measures, over these widths or schemes, and its recipe is printed.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    use_processors(threads)
    from goldstick.algorithms import Quantizer
    from goldstick.algorithms.base import rounds
    from goldstick.checkpoint.working_directory import held_file
    from goldstick.core.json_files import check_writable, dump_json, write_atomically
    from goldstick.core.ranks import Ranks
    from goldstick.hf.example_inputs import as_inputs
    from goldstick.jobs.load.bundled_data import with_bundled_data
    from goldstick.jobs.load.find_model import data_directory, find_model
    from goldstick.jobs.search.for_sensitivity import sensitivity_for_size
    from goldstick.jobs.sensitivity.choices import as_it_stands
    from goldstick.jobs.sensitivity.sensitivity import measure_sensitivity
    from goldstick.recipes.calibration import Calibration
    from goldstick.recipes.recipe import Recipe
    from goldstick.recipes.text import recipe_text
    from goldstick.report.search_words import search_words
    from goldstick.report.sensitivity import print_sensitivity
    from goldstick.report.sensitivity_page import render_sensitivity

    if inputs is not None and (dataset is not None or recipe_for_size is not None):
        other = "--dataset" if dataset is not None else "--recipe-for-size, which searches on rows of text"
        raise click.UsageError(f"--inputs is what the model is measured on; it does not go with {other}")
    if output is not None and output == html:
        raise click.UsageError("-o and --html name the same file; give each its own")
    for path in (output, html):
        if path is not None and prints():
            check_writable(path, overwrite=overwrite)
    loaded = Recipe.load(recipe)
    if group_size_mismatch:
        stages = tuple(
            dataclasses.replace(stage, group_size_mismatch=group_size_mismatch)
            if isinstance(stage, Quantizer)
            else stage
            for stage in loaded.stages
        )
        loaded = loaded.model_copy(update={"stages": stages})
    tried: tuple[int | str, ...] = (*bits, *schemes) or next(
        (as_it_stands(stage) for stage in loaded.stages if rounds(stage)), (4,)
    )
    if dataset is not None:
        loaded = loaded.model_copy(update={"calibration": loaded.calibration.model_copy(update={"dataset": dataset})})
    loaded = with_bundled_data(loaded, model, data_dir)
    text = Calibration(dataset=loaded.calibration.dataset, samples=samples, seq_len=seq_len)
    chosen: Recipe | None = None
    holding = held_file(output) if output is not None and prints() else nullcontext()
    with holding, progress_bar(not as_json) as progress:
        if recipe_for_size is None:
            found = measure_sensitivity(
                find_model(model), loaded, tried, text, inputs=as_inputs(inputs),
                data_dir=data_directory(data_dir, model), progress=progress, ranks=Ranks.joined(),
            )  # fmt: skip
        else:
            found, chosen = sensitivity_for_size(
                model, loaded, tried, text, recipe_for_size, data_dir=data_dir, held_out_rows=held_out_rows,
                progress=progress,
            )  # fmt: skip
    if not prints():
        return
    found = dataclasses.replace(found, model=model)
    with showing(output, html):
        if as_json:
            recipe_found = {} if chosen is None else {"recipe": chosen.model_dump(mode="json")}
            print_json(found.to_dict() | recipe_found)
        else:
            print_sensitivity(console(), found)
            if chosen is not None:
                click.echo("\n".join(search_words(chosen.search)) + "\n\n" + recipe_text(chosen))
    for name, path in (("sensitivity", output), ("page", html)):
        if path is None:
            continue
        content = dump_json(found.to_dict()) if path is output else render_sensitivity(found)
        write_atomically(path, content.encode(), replace=overwrite)
        with showing(path):
            if not as_json:
                click.echo(f"{name}: {path}")
