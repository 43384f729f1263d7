"""The options that name a recipe and change it, of every command that takes one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from goldstick.cli.effort_option import EFFORT
from goldstick.cli.format_option import OWN_FORMATS, FormatName
from goldstick.cli.importance_options import IMPORTANCE
from goldstick.cli.recipes import complete_recipe
from goldstick.cli.renamed_option import renamed_option
from goldstick.core.seed import LEAST, MOST
from goldstick.formats import PREFERRED

if TYPE_CHECKING:
    from goldstick.recipes.effort import Effort
    from goldstick.recipes.recipe import Recipe

DEFAULT_RECIPE = "rtn-w4a16-g128"


def RECIPE_OPTIONS(command: Any) -> Any:  # noqa: N802
    """Give a command these options."""
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
        click.option("--random-tokens", type=click.FloatRange(0, 1), metavar="SHARE",
                     help="Further calibration samples, of random tokens, as a part of those of text."),
        click.option("--allow-short", is_flag=True, help="Go on where the data give fewer samples than asked for."),
        EFFORT,
        IMPORTANCE,
        click.option("--format", "formats", metavar="F", multiple=True,
                     type=FormatName("auto"),
                     help=f"Storage format: auto ({PREFERRED} wherever it can hold the result), {OWN_FORMATS}. "
                          "Given again, each further one is exported to OUTPUT-F."),
        renamed_option("--group-size-mismatch", "--indivisible", 
                       type=click.Choice(["error", "smaller", "channel", "skip"]),
                       help="What a layer becomes whose inputs the group size does not divide."),
        click.option("--tie", type=click.Choice(["error", "untie", "keep"]),
                     help="What to do with a targeted weight that is tied to another."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def chosen_recipe(
    recipe: str,
    exclude: tuple[str, ...],
    dataset: str | None,
    samples: int | None,
    seq_len: int | None,
    seed: int | None,
    text_field: str | None,
    packing: bool | None,
    random_tokens: float | None,
    allow_short: bool,
    importance: str | None,
    formats: tuple[str, ...],
    group_size_mismatch: str | None,
    tie: str | None,
    effort: Effort,
) -> Recipe:
    """The recipe that the options name, changed as they say; files are meant as they stand, whatever the effort."""
    from goldstick.algorithms import Quantizer
    from goldstick.recipes.given_importance import with_importance
    from goldstick.recipes.needs_data import needs_data
    from goldstick.recipes.recipe import Recipe

    loaded = with_importance(Recipe.load(recipe).excluding(*exclude), importance)
    if not recipe.endswith((".yaml", ".yml")):
        loaded = loaded.with_effort(effort)
    calibration = {
        "dataset": dataset, "samples": samples, "seq_len": seq_len, "seed": seed, "text_field": text_field,
        "packing": packing, "random_tokens": random_tokens, "allow_short": allow_short or None,
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
