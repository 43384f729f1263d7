"""``goldstick search``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from goldstick.cli.console import print_json, progress_bar
from goldstick.cli.memory_size import memory_size
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.streams import showing
from goldstick.core.counts import counted


def _share(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """``1%`` as 0.01; a plain number as it is."""
    if value is None:
        return None
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no number; write 1% or 0.01") from None


@click.command()
@click.argument("model")
@click.option("--size", metavar="SIZE", callback=memory_size, help="Bytes of the weight files at most, such as 4GB.")
@click.option("--bits", type=float, help="Bits of those files for each weight at most; headers and scales count.")
@click.option("--share", metavar="PERCENT", callback=_share, help="Part of the model's size at most, such as 60%.")
@click.option("--max-loss", metavar="LOSS", callback=_share, help="The smallest model that loses no more, such as 1%.")
@click.option(
    "--metric",
    type=click.Choice(["perplexity", "kl"]),
    default="perplexity",
    show_default=True,
    help="What --max-loss is of: how much perplexity grows, or KL per token in nats.",
)
@click.option(
    "--for",
    "runtime",
    type=click.Choice(["goldstick", "transformers", "vllm", "llama.cpp"]),
    default="goldstick",
    show_default=True,
    help="The runtime; it decides what layers may become.",
)
@click.option("--schemes", metavar="LIST", help="What to choose among instead, such as w4a16-g32,w8a16.")
@click.option(
    "--method", type=click.Choice(["rtn", "gptq"]), default="gptq", show_default=True, help="How the recipe rounds."
)
@click.option(
    "--effort",
    type=click.Choice(["fast", "normal", "thorough"]),
    default="normal",
    show_default=True,
    help="Gradients alone; measured near the decision; everything measured.",
)
@click.option("--dataset", metavar="PATH|NAME", default="wikitext2", show_default=True, help="The text.")
@click.option("--held-out", metavar="PATH|NAME", help="The text of the rows that judge; else other rows of --dataset.")
@click.option("--data-dir", metavar="DIR", help="Where sets known by name lie; 'reference' for the bundled data.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Rows to search on.")
@click.option("--held-out-rows", type=click.IntRange(2), default=32, show_default=True, help="Rows that judge.")
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
    size: int | None,
    bits: float | None,
    share: float | None,
    max_loss: float | None,
    metric: Literal["perplexity", "kl"],
    runtime: Literal["goldstick", "transformers", "vllm", "llama.cpp"],
    schemes: str | None,
    method: Literal["rtn", "gptq"],
    effort: Literal["fast", "normal", "thorough"],
    dataset: str,
    held_out: str | None,
    data_dir: str | None,
    samples: int,
    held_out_rows: int,
    seq_len: int,
    seed: int,
    output: Path,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Find which layer of MODEL becomes what, so that a size loses least, or a loss is kept in the fewest bytes.

    Writes the recipe, which 'goldstick quantize MODEL -r FILE.yaml' carries out, what was found as JSON, and a page.
    A search that was stopped goes on where the same command is given again.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    use_processors(threads)
    from goldstick.core.json_files import check_writable, dump_json, write_atomically
    from goldstick.jobs.load.find_model import data_directory, find_model
    from goldstick.jobs.search.search import search_recipe
    from goldstick.jobs.search.target import Target
    from goldstick.recipes.recipe import Calibration
    from goldstick.report.search_page import render_search

    if output.suffix not in (".yaml", ".yml"):
        raise click.UsageError("-o is a recipe's file: give it the ending .yaml")
    files: dict[str, Path] = {
        "recipe": output,
        "search": output.with_suffix(".json"),
        "page": output.with_suffix(".html"),
    }
    for path in files.values():
        check_writable(path, overwrite=overwrite)
    target = Target(size=size, bits=bits, share=share, max_loss=max_loss, metric=metric)
    text = Calibration(dataset=dataset, samples=samples, seq_len=seq_len, seed=seed)
    with progress_bar(not as_json) as progress:
        found = search_recipe(
            find_model(model), target, text=text, runtime=runtime,
            schemes=tuple(schemes.split(",")) if schemes else (), method=method, effort=effort,
            calibration=Calibration(dataset=dataset), held_out=held_out, held_out_rows=held_out_rows,
            data_dir=data_directory(data_dir, model), journal=output.with_suffix(".journal.json"), progress=progress,
        )  # fmt: skip
    record: dict[str, Any] = found.record | {"model": model}
    contents = {"recipe": _yaml(found.recipe), "search": dump_json(record), "page": render_search(record)}
    for name, path in files.items():
        write_atomically(path, contents[name].encode(), replace=overwrite)
    with showing(output):
        if as_json:
            print_json({name: str(path) for name, path in files.items()} | {
                key: record[key] for key in ("bytes", "bits_per_weight", "whole")
            })  # fmt: skip
            return
        whole = record["whole"]
        click.echo(
            f"size: {found.nbytes:,} bytes of weight files, {record['bits_per_weight']:.4g} bits a weight\n"
            f"loss: KL {whole['kl']:.4g} ± {whole['half_width']:.2g} nats per token on "
            f"{counted(whole['rows'], 'held-out row')}, rounded to nearest"
        )
        for name, path in files.items():
            click.echo(f"{name}: {path}")


def _yaml(recipe: Any) -> str:
    import yaml

    return yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False, width=110)
