"""``goldstick importance``."""

from __future__ import annotations

from pathlib import Path

import click

from goldstick.cli.console import print_json, progress_bar
from goldstick.cli.memory_size import memory_size
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.streams import showing
from goldstick.core.seed import LEAST, MOST


@click.command()
@click.argument("model")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.gguf",
    help="The importance matrix to write.",
)
@click.option(
    "--dataset", "--data", "dataset", metavar="PATH|NAME", help="The text; wikitext2, or what comes with reference."
)
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), help="Number of samples; 128 if nothing is said.")
@click.option("--seq-len", type=click.IntRange(1), help="Tokens of a sample; 2048 if nothing is said.")
@click.option("--seed", type=click.IntRange(LEAST, MOST), help="Seed of the sampling.")
@click.option("--text-field", metavar="NAME", help="The field of rows that holds text or messages.")
@click.option("--allow-short", is_flag=True, help="Go on where the data give fewer samples than asked for.")
@click.option("--max-memory", metavar="SIZE", callback=memory_size, help="Memory the run may use, such as 8GB.")
@click.option("--overwrite", is_flag=True, help="Replace the file where it exists.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def importance(
    model: str,
    output: Path,
    dataset: str | None,
    data_dir: str | None,
    samples: int | None,
    seq_len: int | None,
    seed: int | None,
    text_field: str | None,
    allow_short: bool,
    max_memory: int | None,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure how large the inputs of MODEL's layers are on calibration data, as an importance matrix for llama.cpp.

    MODEL stays as it is, as in llama-imatrix. 'goldstick quantize --importance FILE.gguf' and 'llama-quantize
    --imatrix FILE.gguf' take the file.
    """
    use_processors(threads)
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.checkpoint.gguf.directory import checkpoint_directory
    from goldstick.checkpoint.working_directory import held_file
    from goldstick.jobs.importance.measure import LOOKING, measure_importance
    from goldstick.jobs.load.bundled_data import with_bundled_data
    from goldstick.jobs.load.find_model import data_directory, find_model
    from goldstick.recipes.recipe import Recipe

    given = {"dataset": dataset, "samples": samples, "seq_len": seq_len, "seed": seed, "text_field": text_field,
             "allow_short": allow_short or None}  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    recipe = Recipe.load({**LOOKING, "calibration": asked})
    text = with_bundled_data(recipe, model, data_dir).calibration
    with (
        checkpoint_directory(find_model(model)) as directory,
        held_file(output),
        progress_bar(not as_json) as progress,
    ):
        found = measure_importance(
            directory, text, output, data_dir=data_directory(data_dir, model), overwrite=overwrite,
            max_memory=max_memory, progress=progress,
        )  # fmt: skip
    with showing(output):
        if as_json:
            print_json({"file": str(output), "layers": found.layers, "calibration": dict(found.audit)})
        else:
            click.echo(f"importance matrix of {found.layers} layers: {output}")
