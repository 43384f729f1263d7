"""``goldstick plan``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from goldstick.cli.console import console, print_json
from goldstick.cli.further_formats import further_directories, refuse_formats
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.memory_size import memory_size
from goldstick.cli.recipe_options import RECIPE_OPTIONS, chosen_recipe
from goldstick.cli.search_options import SIZE_OPTIONS, given
from goldstick.core.collector import no_collection
from goldstick.core.counts import counted

if TYPE_CHECKING:
    from goldstick.jobs.plan.plan import Plan
    from goldstick.jobs.plan.several_ranks import RanksForecast
    from goldstick.jobs.search.runtimes import RuntimeName
    from goldstick.recipes.recipe import Recipe

#: Options that say which sizes are asked for.
_SIZES = ("model", "size", "bits", "share", "runtime", "tensor_parallel", "schemes", "as_json")


@click.command()
@click.argument("model")
@click.option("--data-dir", metavar="DIR", help="Where data known by name lie; 'reference' for the bundled data.")
@INPUTS
@SIZE_OPTIONS
@click.option("--nproc", type=click.IntRange(1), metavar="N", help="Forecast a run in so many processes of torchrun.")
@click.option(
    "--memory",
    metavar="SIZE",
    callback=memory_size,
    help="Memory that each process has, such as 80GB: fails where that does not hold the run.",
)
@RECIPE_OPTIONS
@no_collection()  # a plan holds no weights
def plan(
    model: str, data_dir: str | None, inputs: Path | None, size: int | None, bits: float | None, share: float | None,
    runtime: str | None, schemes: tuple[str, ...], tensor_parallel: int, nproc: int | None,
    memory: int | None, as_json: bool, **recipe: Any,
) -> None:  # fmt: skip
    """Show what a recipe would do to MODEL, layer by layer, and which formats the result can be exported to.

    With --size, --bits or --share it shows which sizes are possible instead. Reads the config and the file headers
    only, so it answers in seconds for a model of any size. Fails where the run would, also for data that are missing.
    """
    if (size, bits, share) != (None, None, None):
        _refuse_beside_a_size()
        asked = {"size": size, "bits": bits, "share": share}
        show_sizes(model, asked, cast("RuntimeName", runtime or "goldstick"), tensor_parallel, schemes, as_json)
        return
    if loose := given(click.get_current_context(), "schemes"):
        raise click.UsageError(f"{loose[0]} is of a search; say --size, --bits or --share, too.")
    formats: tuple[str, ...] = recipe["formats"]
    planned = plan_for(model, chosen_recipe(**recipe), inputs, data_dir, runtime, tensor_parallel)
    refuse_formats(planned, list(further_directories(Path("OUTPUT"), formats)))
    if nproc is None and memory is None:
        show_plan(planned, as_json)
        return
    from goldstick.jobs.plan.several_ranks import forecast_ranks

    forecast = forecast_ranks(planned, nproc or 1)
    show_plan(planned, as_json, forecast)
    if memory is not None:
        forecast.require(memory)


def _refuse_beside_a_size() -> None:
    context = click.get_current_context()
    others = given(context, *(parameter.name for parameter in context.command.params if parameter.name not in _SIZES))
    if others:
        raise click.UsageError(f"With a size, {others[0]} changes nothing that can be planned; leave it out.")


def show_sizes(
    model: str, asked: Mapping[str, Any], runtime: RuntimeName, tensor_parallel: int, schemes: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Print which sizes a model can have."""
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.checkpoint.gguf.directory import checkpoint_directory
    from goldstick.jobs.load.find_model import find_model
    from goldstick.jobs.search.possible import possible_sizes
    from goldstick.jobs.search.target import Target
    from goldstick.report.terminal import print_table

    target = Target(**asked)
    with checkpoint_directory(find_model(model)) as directory:
        found = possible_sizes(directory, target, runtime=runtime, tensor_parallel=tensor_parallel, schemes=schemes)
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        [one.scheme, f"{one.nbytes:,}", f"{found.bits(one.nbytes):.3f}", f"{one.nbytes / found.source:.1%}",
         "yes" if one.nbytes <= found.asked else "no", f"{counted(one.left, 'layer')} in float" if one.left else ""]
        for one in found.uniform
    ]  # fmt: skip
    columns = ("one scheme for all", "<bytes", "<bits a weight", "<of the source", "fits", "note")
    print_table(console(), f"Sizes for {runtime}", columns, rows)
    for name, nbytes in (("asked", found.asked), ("least", found.least), ("most", found.most)):
        click.echo(f"{name}: {nbytes:,} bytes of weight files, {found.bits(nbytes):.4g} bits a weight")
    more = (
        ("" if runtime == "goldstick" else f" --for {runtime}")
        + ("" if tensor_parallel == 1 else f" --tensor-parallel {tensor_parallel}")
        + (f" --schemes {','.join(schemes)}" if schemes else "")
    )
    if found.possible:
        command = f"goldstick quantize MODEL -o DIR --size {found.asked}{more}"
        click.echo(f"possible: '{command}' chooses for each of {counted(found.layers, 'layer')}")
    elif found.asked >= found.source:
        click.echo(f"not possible: {found.source:,} bytes hold the model as it is, so ask for less")
    else:
        click.echo("not possible: ask for more, or give smaller --schemes")


def plan_for(
    model: str, recipe: Recipe, inputs: Path | None, data_dir: str | None, runtime: str | None, tensor_parallel: int
) -> Plan:
    """The plan of a recipe for a model, from its config and file headers."""
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick import planning

    return planning.plan(
        model, recipe, inputs=inputs, data_dir=data_dir, runtime=runtime, tensor_parallel=tensor_parallel
    )


def show_plan(planned: Plan, as_json: bool, forecast: RanksForecast | None = None) -> None:
    """Print a plan, and what each of several processes takes."""
    from goldstick.algorithms.stage import CacheQuantizer
    from goldstick.jobs.plan.disk import forecast_disk
    from goldstick.jobs.plan.exports import export_refusals
    from goldstick.jobs.plan.layer_table import layer_table
    from goldstick.report.terminal import print_table
    from goldstick.report.words import format_bytes, rotation_words

    rows, exports, disk = layer_table(planned), export_refusals(planned), forecast_disk(planned)
    if as_json:
        print_json(
            {
                "format": planned.format.name,
                "bytes_before": planned.bytes_before,
                "bytes_after": planned.bytes_after,
                "peak_memory_forecast": planned.peak_memory,
                "disk_forecast": {"beside_output": disk.beside, "temporary": disk.temporary},
                "seconds_forecast": round(planned.seconds, 1),
                "exports": {name: reason or None for name, reason in exports.items()},
                "streams": planned.streams,
                "by_blocks": planned.by_blocks,
                "rotation": planned.rotation.to_dict() if planned.rotation else None,
                "kv_cache": next((stage.scheme.label for stage in planned.resolution.of(CacheQuantizer)), None),
                "warnings": list(planned.warnings),
                "layers": rows,
            }
            | ({} if forecast is None else {"ranks": forecast.to_dict()})
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
    places = {"beside the output": disk.beside, "in temporary files (TMPDIR)": disk.temporary}
    if held := [f"{format_bytes(nbytes)} {where}" for where, nbytes in places.items() if nbytes]:
        click.echo(f"disk while it runs: about {', '.join(held)}")
    if forecast is not None:
        parts = {"block": forecast.block, "outside the blocks": forecast.outside, "Hessian": forecast.hessian,
                 "batches": forecast.batches, "libraries": forecast.base}  # fmt: skip
        click.echo(
            f"{counted(forecast.processes, 'rank')}: each holds at least {format_bytes(forecast.held)} "
            f"({', '.join(f'{name} {format_bytes(part)}' for name, part in parts.items() if part)}), sends at most "
            f"{format_bytes(forecast.sent)}; about {forecast.seconds:.0f} s"
        )
    possible = [name for name, reason in exports.items() if not reason]
    click.echo(f"can be exported to: {', '.join(possible) or 'no other format'}")
    if planned.rotation:
        click.echo(rotation_words(planned.rotation.to_dict()))
    for stage in planned.resolution.of(CacheQuantizer):
        click.echo(f"KV cache: {stage.scheme.label}")
    for warning in planned.warnings:
        click.echo(f"warning: {warning}")
