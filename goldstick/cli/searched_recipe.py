"""The recipe of a quantization that says a size or a loss instead of one: it is searched for first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldstick.cli.console import progress_bar
from goldstick.cli.search_options import NAMES, TARGETS, given, naming_the_journal

if TYPE_CHECKING:
    from goldstick.recipes.recipe import Recipe

#: The rows that a search looks at, beside those that calibrate.
SEARCH_ROWS = ("search_samples", "search_seq_len")
_CALIBRATION = ("samples", "seq_len", "seed", "text_field", "packing", "random_tokens", "allow_short")


def is_searched(context: click.Context) -> bool:
    """Whether the command line asks for a size or a loss.

    Raises:
        UsageError: It does, and names a recipe or a proof that does not go with it; or it says how, and not for what.
    """
    searched = any(context.params[name] is not None for name in TARGETS)
    others = given(context, "recipe", "formats", "group_size_mismatch", "tie", "dry_run", "inputs", "importance")
    if searched and others:
        raise click.UsageError(
            f"A size or a loss is searched for, and the recipe that is found says what {others[0]} would; leave it "
            "out. 'goldstick plan MODEL --size …' says which sizes are possible, and --for names the runtime."
        )
    looks_at_data = context.params["method"] != "rtn" or context.params["prune"]
    if searched and looks_at_data and context.params["proof"] == "tensors":
        raise click.UsageError(
            "--proof tensors is for recipes that look at no data, and this search finds one that does: give --method "
            "rtn without --prune, or leave --proof out."
        )
    if not searched and (loose := given(context, *(name for name in (*NAMES, *SEARCH_ROWS) if name != "effort"))):
        raise click.UsageError(f"{loose[0]} is of a search; say --size, --bits, --share or --max-loss, too.")
    return searched


def journal_of(output: Path) -> Path:
    """The file beside an output in which a search for it is kept until the output is in place."""
    from goldstick.checkpoint.staging import located

    place = located(output)
    return place.with_name(f".{place.name}.search.json")


def searched_recipe(
    model: str, output: Path, parameters: Mapping[str, Any], *, tensor_parallel: int, data_dir: str | None,
    overwrite: bool, resume: bool, as_json: bool,
) -> Recipe:  # fmt: skip
    """Search, or take up what a search for the same output found.

    Args:
        model: The model.
        output: The checkpoint to make.
        parameters: The command's options.
        tensor_parallel: Over how many devices the runtime is to split the layers.
        data_dir: Where sets known by name lie.
        overwrite: Whether the output may be replaced.
        resume: Whether the output may be there, made of this very search.
        as_json: Whether the command prints JSON alone.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick import api

    asked = {name: parameters[name] for name in _CALIBRATION}
    calibration = {name: value for name, value in asked.items() if value is not None and value is not False}
    journal = journal_of(output)
    with naming_the_journal(journal), progress_bar(not as_json) as progress:
        return api.search(
            model, **{name: parameters[name] for name in NAMES},
            runtime=parameters["runtime"] or "goldstick", tensor_parallel=tensor_parallel,
            exclude=parameters["exclude"], dataset=parameters["dataset"], samples=parameters["search_samples"],
            seq_len=parameters["search_seq_len"], seed=parameters["seed"] or 0, calibration=calibration,
            data_dir=data_dir, journal=journal, finished=output if resume and not overwrite else None,
            progress=progress,
        )  # fmt: skip
