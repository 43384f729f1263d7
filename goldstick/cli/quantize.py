"""``goldstick quantize`` and ``goldstick plan``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from goldstick.cli.console import console, print_json, progress_bar, split_names
from goldstick.cli.format_option import OWN_FORMATS, FormatName
from goldstick.cli.further_formats import export_further, further_directories, refuse_formats
from goldstick.cli.importance_options import IMPORTANCE, SAVE_IMPORTANCE
from goldstick.cli.in_place import naming_what_is_in_place
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.memory_size import memory_size
from goldstick.cli.processors import THREADS, use_processors
from goldstick.cli.push import push
from goldstick.cli.recipes import complete_recipe
from goldstick.cli.renamed_option import renamed_option
from goldstick.cli.streams import showing
from goldstick.cli.unused import note_unused
from goldstick.core.seed import LEAST, MOST
from goldstick.formats import PREFERRED

if TYPE_CHECKING:
    from goldstick.jobs.plan.plan import Plan
    from goldstick.recipes.recipe import Recipe

DEFAULT_RECIPE = "rtn-w4a16-g128"


def _recipe_options(command: Any) -> Any:
    options: list[Any] = [
        click.option("--recipe", "-r", default=DEFAULT_RECIPE, show_default=True, metavar="RECIPE|FILE",
                     shell_complete=complete_recipe,
                     help="Words such as gptq-w4a16-g128 (see 'goldstick recipes list'), or a YAML file."),
        click.option("--exclude", metavar="PATTERN", multiple=True,
                     help="Layers to leave alone beside those of the recipe, such as '*down_proj'; may be repeated."),
        click.option("--dataset", "--data", "dataset", metavar="PATH|NAME",
                     help="Calibration data, for algorithms that look at data: text, images, audio, tensors."),
        click.option("--samples", type=click.IntRange(1), help="Number of calibration samples."),
        click.option("--seq-len", type=click.IntRange(1), help="Tokens of a calibration sample."),
        click.option("--seed", type=click.IntRange(LEAST, MOST), help="Seed of the calibration sampling."),
        click.option("--text-field", metavar="NAME", help="The field of calibration rows that holds text or messages."),
        click.option("--packing/--no-packing", default=None,
                     help="Cut calibration text into full samples (the default), or pad a sample for each row."),
        click.option("--allow-short", is_flag=True, help="Go on where the data give fewer samples than asked for."),
        IMPORTANCE,
        click.option("--format", "formats", metavar="F", multiple=True,
                     type=FormatName("auto"),
                     help=f"Storage format: auto ({PREFERRED} wherever it can hold the result), {OWN_FORMATS}. "
                          "Given again, each further one is exported to OUTPUT-F."),
        renamed_option("--group-size-mismatch", "--indivisible", type=click.Choice(["error", "channel", "skip"]),
                       help="What a layer becomes whose inputs the group size does not divide."),
        click.option("--tie", type=click.Choice(["error", "untie", "keep"]),
                     help="What to do with a targeted weight that is tied to another."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The directory to make.")
@click.option("--evaluate", "tasks", metavar="TASKS", callback=split_names, help="Tasks to run before and after.")
@click.option("--data-dir", metavar="DIR", help="Where the tasks' data lie; 'reference' for the bundled data.")
@click.option("--limit", type=click.IntRange(1), help="At most so many items of each task.")
@click.option("--device", default="cpu", show_default=True, help="Where weights are rounded.")
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
@_recipe_options
def quantize(
    model: str,
    output: Path,
    tasks: tuple[str, ...] | None,
    data_dir: str | None,
    limit: int | None,
    device: str,
    threads: int | None,
    proof: Literal["outputs", "tensors"],
    resume: bool,
    max_memory: int | None,
    save_importance: Path | None,
    overwrite: bool,
    repository: str | None,
    private: bool,
    dry_run: bool,
    inputs: Path | None,
    as_json: bool,
    **recipe_options: Any,
) -> None:
    """Compress MODEL into a new, proven checkpoint directory."""
    from goldstick.checkpoint.hub import check_repository
    from goldstick.checkpoint.staging import check_output
    from goldstick.training.parallel import refuse_idle_processes

    check_repository(repository)
    formats: tuple[str, ...] = recipe_options["formats"]
    recipe = _recipe(**recipe_options)
    note_unused(
        recipe, evaluates=bool(recipe.evaluate if tasks is None else tasks), pushes=repository is not None,
        limit=limit, data_dir=data_dir, private=private,
    )  # fmt: skip
    further = further_directories(output, formats)
    for directory in (output, *further.values()):
        check_output(directory, overwrite, resume)
    if dry_run or further:
        planned = _plan(model, recipe, inputs)
        refuse_formats(planned, list(further))
    if dry_run:
        _show_plan(planned, as_json)
        return
    refuse_idle_processes(trains=any(stage.trains for stage in recipe.stages))
    use_processors(threads)
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick import api
    from goldstick.core.freed_memory import give_large_blocks_back
    from goldstick.evaluation.compare import compare
    from goldstick.evaluation.items import without_items
    from goldstick.jobs.evaluate.cache import cache_directory
    from goldstick.report.divergence_view import divergence_words
    from goldstick.report.terminal import print_report
    from goldstick.report.words import proof_words, speed_words
    from goldstick.training.parallel import rank

    give_large_blocks_back()
    with (
        naming_what_is_in_place((output, *further.values()), repository),
        progress_bar(not as_json and rank() == 0) as progress,
    ):
        result = api.quantize(
            model, recipe, output=output, overwrite=overwrite, evaluate=tasks, data_dir=data_dir, limit=limit,
            device=device, proof=proof, resume=resume, max_memory=max_memory,
            inputs=inputs, save_importance=save_importance, cache=cache_directory(), progress=progress,
        )  # fmt: skip
        if rank() > 0:
            return
        export_further(output, further, overwrite=overwrite or resume, proof=proof, progress=progress)
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
            if evaluation.get("speed"):
                click.echo(f"speed: {speed_words(evaluation['speed'])}")
            click.echo(f"proof: {proof_words(result.report.proof)}")
            click.echo(f"checkpoint: {output}\nreport: {output / 'report.html'} (and report.json)")
            for name, directory in further.items():
                click.echo(f"{name}: {directory}")
    if repository is not None:
        push(output, repository, private=private, as_json=as_json)


@click.command()
@click.argument("model")
@INPUTS
@_recipe_options
def plan(model: str, inputs: Path | None, as_json: bool, **recipe_options: Any) -> None:
    """Show what a recipe would do to MODEL, layer by layer.

    Reads the config and the file headers only, so it answers in seconds for a model of any size.
    """
    formats: tuple[str, ...] = recipe_options["formats"]
    planned = _plan(model, _recipe(**recipe_options), inputs)
    refuse_formats(planned, list(further_directories(Path("OUTPUT"), formats)))
    _show_plan(planned, as_json)


def _plan(model: str, recipe: Recipe, inputs: Path | None) -> Plan:
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.checkpoint.gguf.directory import checkpoint_directory
    from goldstick.hf.example_inputs import read_inputs
    from goldstick.jobs.load.find_model import find_model
    from goldstick.jobs.plan.plan import make_plan

    with checkpoint_directory(find_model(model)) as directory:
        return make_plan(directory, recipe, read_inputs(inputs) if inputs is not None else None)


def _recipe(
    recipe: str,
    exclude: tuple[str, ...],
    dataset: str | None,
    samples: int | None,
    seq_len: int | None,
    seed: int | None,
    text_field: str | None,
    packing: bool | None,
    allow_short: bool,
    importance: str | None,
    formats: tuple[str, ...],
    group_size_mismatch: str | None,
    tie: str | None,
) -> Recipe:
    from goldstick.algorithms import Quantizer
    from goldstick.recipes.given_importance import with_importance
    from goldstick.recipes.recipe import Recipe
    from goldstick.recipes.run import needs_data

    loaded = with_importance(Recipe.load(recipe).excluding(*exclude), importance)
    calibration = {
        "dataset": dataset, "samples": samples, "seq_len": seq_len, "seed": seed, "text_field": text_field,
        "packing": packing, "allow_short": allow_short or None,
    }  # fmt: skip
    given = {name: value for name, value in calibration.items() if value is not None}
    if given and not needs_data(loaded.stages):
        click.echo("note: no stage of this recipe looks at data; the calibration options change nothing", err=True)
    stage_options: dict[str, Any] = {}
    stage_options |= {"group_size_mismatch": group_size_mismatch} if group_size_mismatch else {}
    stage_options |= {"tie": tie} if tie else {}
    return loaded.model_copy(
        update={
            "stages": tuple(
                dataclasses.replace(stage, **stage_options) if isinstance(stage, Quantizer) else stage
                for stage in loaded.stages
            ),
            "calibration": loaded.calibration.model_copy(update=given),
            "export": loaded.export.model_copy(update={"format": formats[0]} if formats else {}),
        }
    )


def _show_plan(planned: Plan, as_json: bool) -> None:
    from goldstick.algorithms.stage import CacheQuantizer
    from goldstick.jobs.plan.layer_table import layer_table
    from goldstick.report.terminal import print_table
    from goldstick.report.words import format_bytes, rotation_words

    rows = layer_table(planned)
    if as_json:
        print_json(
            {
                "format": planned.format.name,
                "bytes_before": planned.bytes_before,
                "bytes_after": planned.bytes_after,
                "peak_memory_forecast": planned.peak_memory,
                "seconds_forecast": round(planned.seconds, 1),
                "streams": planned.streams,
                "by_blocks": planned.by_blocks,
                "rotation": planned.rotation.to_dict() if planned.rotation else None,
                "kv_cache": next((stage.scheme.label for stage in planned.resolution.of(CacheQuantizer)), None),
                "warnings": list(planned.warnings),
                "layers": rows,
            }
        )
        return
    cells = [
        [row["name"], "×".join(map(str, row["shape"])), row["dtype"], row["scheme"] or "",
         format_bytes(row["bytes_before"]), format_bytes(row["bytes_after"]), row["note"] or ""]
        for row in rows
    ]  # fmt: skip
    columns = ("tensor", "shape", "dtype", "becomes", "<before", "<after", "note")
    print_table(console(), "Plan", columns, cells)
    click.echo(
        f"format: {planned.format.name}; size: {format_bytes(planned.bytes_before)} -> "
        f"{format_bytes(planned.bytes_after)}; "
        f"peak memory about {format_bytes(planned.peak_memory)}; about {planned.seconds:.0f} s on this recipe's "
        f"{'stream' if planned.streams else 'blocks' if planned.by_blocks else 'whole model in memory'}"
    )
    if planned.rotation:
        click.echo(rotation_words(planned.rotation.to_dict()))
    for stage in planned.resolution.of(CacheQuantizer):
        click.echo(f"KV cache: {stage.scheme.label}")
    for warning in planned.warnings:
        click.echo(f"warning: {warning}")
