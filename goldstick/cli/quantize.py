"""``goldstick quantize``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import click

from goldstick.cli.console import console, print_json, progress_bar, split_names
from goldstick.cli.examples_option import EXAMPLES, asked_examples, echo_examples
from goldstick.cli.further_formats import export_further, further_directories, refuse_formats
from goldstick.cli.importance_options import SAVE_IMPORTANCE
from goldstick.cli.in_place import naming_what_is_in_place
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.memory_size import memory_size
from goldstick.cli.plan import plan_for, show_plan
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.push import push
from goldstick.cli.recipe_options import RECIPE_OPTIONS, chosen_recipe
from goldstick.cli.search_options import NAMES, SEARCH_OPTIONS
from goldstick.cli.searched_recipe import SEARCH_ROWS, is_searched, journal_of, searched_recipe
from goldstick.cli.several import prints
from goldstick.cli.streams import showing
from goldstick.cli.unused import note_unused


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The directory to make.")
@click.option("--evaluate", "tasks", metavar="TASKS", callback=split_names, help="Tasks to run before and after.")
@click.option("--data-dir", metavar="DIR", help="Where the tasks' data lie; 'reference' for the bundled data.")
@click.option("--limit", type=click.IntRange(1), help="At most so many items of each task.")
@EXAMPLES
@click.option("--device", default="cpu", show_default=True, help="Where the model runs and is rounded, such as cuda.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@click.option(
    "--proof",
    type=click.Choice(["outputs", "tensors"]),
    default="outputs",
    show_default=True,
    help="How the result is proven: by what the model gives, block by block, or by its tensors alone.",
)
@click.option("--resume", is_flag=True,
              help="Go on with a stopped run behind its last block or epoch, to the same bytes.")  # fmt: skip
@click.option("--max-memory", metavar="SIZE", callback=memory_size, help="Memory the run may use, such as 8GB.")
@SAVE_IMPORTANCE
@click.option("--overwrite", is_flag=True, help="Replace an output directory that goldstick wrote.")
@click.option("--push-to-hub", "repository", metavar="OWNER/NAME", help="Upload the finished checkpoint there.")
@click.option("--private", is_flag=True, help="Make that repository a private one.")
@click.option("--dry-run", is_flag=True, help="Plan only; the same as 'goldstick plan'.")
@INPUTS
@SEARCH_OPTIONS
@click.option("--search-samples", type=click.IntRange(1), default=8, show_default=True, help="Rows to search on.")
@click.option("--search-seq-len", type=click.IntRange(2), default=256, show_default=True, help="Tokens of such a row.")
@RECIPE_OPTIONS
def quantize(
    model: str, output: Path, tasks: tuple[str, ...] | None, data_dir: str | None, limit: int | None,
    examples: int | None, prompts: tuple[str, ...], device: str,
    threads: int | None, proof: Literal["outputs", "tensors"], resume: bool, max_memory: int | None,
    save_importance: Path | None, overwrite: bool, repository: str | None, private: bool, dry_run: bool,
    inputs: Path | None, tensor_parallel: int, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Compress MODEL into a new, proven checkpoint directory.

    A recipe says how; or a size or a loss is given, and the recipe is searched for.
    """
    context = click.get_current_context()
    if context.find_root().obj and not dry_run and os.environ.get("RANK", "0") == "0":
        from goldstick.core.fresh_process import start_ahead

        start_ahead("goldstick.jobs.proof.worker")  # what both import takes a processor each
    from goldstick.checkpoint.hub import check_repository
    from goldstick.checkpoint.staging import check_output

    check_repository(repository)
    asked = asked_examples(examples, prompts)
    formats: tuple[str, ...] = options["formats"]
    runtime: str | None = options["runtime"]
    if searched := is_searched(context):
        check_output(output, overwrite, resume)
        use_processors(threads)
        recipe = searched_recipe(
            model,
            output,
            options,
            tensor_parallel=tensor_parallel,
            data_dir=data_dir,
            overwrite=overwrite,
            resume=resume,
            as_json=as_json,
        )
    else:
        others = {*NAMES, *SEARCH_ROWS, "runtime"} - {"effort"}
        recipe = chosen_recipe(**{name: value for name, value in options.items() if name not in others})
    note_unused(
        recipe, evaluates=bool(recipe.evaluate if tasks is None else tasks), pushes=repository is not None,
        limit=limit, data_dir=data_dir, private=private, examples=examples is not None or bool(prompts),
    )  # fmt: skip
    further = further_directories(output, formats)
    for directory in (output, *further.values()):
        check_output(directory, overwrite, resume)
    if dry_run or further:
        planned = plan_for(model, recipe, inputs, data_dir, runtime, tensor_parallel)
        refuse_formats(planned, list(further))
    if dry_run:
        show_plan(planned, as_json)
        return
    use_processors(threads)
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick import api
    from goldstick.core.freed_memory import give_large_blocks_back
    from goldstick.evaluation.compare import compare
    from goldstick.evaluation.items import without_items
    from goldstick.jobs.evaluate.cache import cache_directory
    from goldstick.report.divergence_view import divergence_words
    from goldstick.report.search_words import search_words
    from goldstick.report.terminal import print_report
    from goldstick.report.words import proof_words, speed_words

    give_large_blocks_back()
    with (
        naming_what_is_in_place((output, *further.values()), repository),
        progress_bar(not as_json) as progress,
    ):
        result = api.quantize(
            model, recipe, output=output, overwrite=overwrite, evaluate=tasks, data_dir=data_dir, limit=limit,
            device=device, proof=proof, resume=resume, max_memory=max_memory,
            inputs=inputs, runtime=runtime, tensor_parallel=tensor_parallel, save_importance=save_importance,
            cache=cache_directory(), examples=asked, progress=progress,
        )  # fmt: skip
        if not prints():
            return
        export_further(output, further, overwrite=overwrite or resume, proof=proof, progress=progress)
    if searched:
        journal_of(output).unlink(missing_ok=True)
    if result.finished_before:
        click.echo(f"This run is finished already: {output} is what it gave. Nothing was done.", err=True)
    with showing(output):
        if as_json:
            import json

            exported = {name: str(directory) for name, directory in further.items()}
            report = without_items(json.loads(result.report.to_json()))
            print_json({"directory": str(output), "exported": exported, "report": report})
        elif not result.finished_before:
            evaluation = result.report.evaluation
            rows = compare(evaluation["after"], evaluation["before"]) if evaluation else ()
            print_report(console(), result.report, rows)
            if evaluation.get("divergence"):
                for line in divergence_words({**evaluation, "baseline": evaluation["before"]}):
                    click.echo(line)
            if evaluation.get("examples"):
                echo_examples(evaluation["examples"], whole=bool(prompts))
            if evaluation.get("speed"):
                click.echo(f"speed: {speed_words(evaluation['speed'])}")
            if searched:
                click.echo("\n".join(search_words(result.report.search)))
            click.echo(f"proof: {proof_words(result.report.proof)}")
            click.echo(f"checkpoint: {output}\nreport: {output / 'report.html'} (and report.json)")
            for name, directory in further.items():
                click.echo(f"{name}: {directory}")
    if repository is not None:
        push(output, repository, private=private, as_json=as_json)
