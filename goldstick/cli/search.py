"""``goldstick search``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from goldstick.cli.console import print_json, progress_bar
from goldstick.cli.effort_option import EFFORT
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.search_options import SEARCH_OPTIONS, naming_the_journal
from goldstick.cli.several import prints
from goldstick.cli.streams import showing


@click.command()
@click.argument("model")
@SEARCH_OPTIONS
@EFFORT
@click.option("--beside", multiple=True, metavar="DIR", help="Another checkpoint of MODEL, to show beside; repeatable.")
@click.option("--dataset", metavar="PATH|NAME", help="The text; wikitext2, or what comes with reference.")
@click.option("--allow-short", is_flag=True, help="Calibrate the recipe on what there is where the text is short.")
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Rows to search on.")
@click.option("--seq-len", type=click.IntRange(2), default=256, show_default=True, help="Tokens of a row.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the rows and the labels.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.yaml",
    help="The recipe to write; its JSON and page get the same name.",
)
@click.option("--overwrite", is_flag=True, help="Replace the files where they exist.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search(
    model: str,
    dataset: str | None,
    allow_short: bool,
    data_dir: str | None,
    samples: int,
    seq_len: int,
    seed: int,
    output: Path,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find which layer of MODEL becomes what, so that a size loses least, or a loss is kept in the fewest bytes.

    Writes the recipe, which 'goldstick quantize MODEL -r FILE.yaml' carries out, what was found as JSON, and a page.
    A search that was stopped goes on where the same command is given again.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    use_processors(threads)
    from goldstick import api
    from goldstick.core.json_files import check_writable, dump_json, write_atomically
    from goldstick.recipes.text import recipe_text
    from goldstick.report.search_page import render_search, require_plotly
    from goldstick.report.search_words import search_words

    if output.suffix not in (".yaml", ".yml"):
        raise click.UsageError("-o is a recipe's file: give it the ending .yaml")
    files: dict[str, Path] = {
        "recipe": output,
        "search": output.with_suffix(".json"),
        "page": output.with_suffix(".html"),
    }
    for path in files.values() if prints() else ():
        check_writable(path, overwrite=overwrite)
    require_plotly()
    journal = output.with_suffix(".journal.json")
    with naming_the_journal(journal), progress_bar(not as_json) as progress:
        recipe = api.search(
            model, dataset=dataset, samples=samples, seq_len=seq_len, seed=seed, data_dir=data_dir, journal=journal,
            calibration={"allow_short": True} if allow_short else None, progress=progress,
            **asked | {"runtime": asked["runtime"] or "goldstick"},
        )  # fmt: skip
    if not prints():
        return
    record = recipe.search
    contents = {"recipe": recipe_text(recipe), "search": dump_json(record), "page": render_search(record)}
    for name, path in files.items():
        write_atomically(path, contents[name].encode(), replace=overwrite)
    journal.unlink(missing_ok=True)
    with showing(output):
        if as_json:
            print_json({name: str(path) for name, path in files.items()} | {
                key: record[key] for key in ("bytes", "bits_per_weight", "whole")
            })  # fmt: skip
            return
        for line in search_words(record):
            click.echo(line)
        for name, path in files.items():
            click.echo(f"{name}: {path}")
