"""Find: the recipe of the least loss at a size, or of the least size at a loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from goldstick.checkpoint.working_directory import held_file
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.jobs.load.load import load_float
from goldstick.jobs.search.beside import judge_beside
from goldstick.jobs.search.channels import prunable_groups
from goldstick.jobs.search.journal import refuse_foreign
from goldstick.jobs.search.layers import Method, find_layers
from goldstick.jobs.search.possible import refuse_size
from goldstick.jobs.search.pruned import refuse_pruning, search_pruned
from goldstick.jobs.search.runnable import rules_of
from goldstick.jobs.search.runtimes import RuntimeName, runtime_to_search_for
from goldstick.jobs.search.search import Search
from goldstick.jobs.search.settings import SearchSettings
from goldstick.jobs.search.target import Found, Target
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort


def search_recipe(
    directory: Path,
    target: Target,
    *,
    text: Calibration,
    runtime: RuntimeName = "goldstick",
    tensor_parallel: int = 1,
    schemes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    method: Method = "gptq",
    effort: Effort = "default",
    calibration: Calibration | None = None,
    held_out: str | None = None,
    held_out_rows: int = 32,
    data_dir: Path | None = None,
    journal: Path | None = None,
    prune: bool = False,
    beside: Sequence[str] = (),
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Found:
    """Find which layer becomes what.

    Args:
        directory: A float checkpoint of a causal language model.
        target: What is asked for.
        text: The rows that changes are measured on, and their seed.
        runtime: What the result is for.
        tensor_parallel: Over how many devices that splits layers: what it cannot split so is no choice.
        schemes: What to choose among, instead of all that the runtime runs.
        exclude: Patterns of layers that stay float.
        method: How layers are rounded; by GPTQ each alone while searching, on the inputs it has in the float model.
        effort: ``fast`` takes gradients alone; ``default`` measures what is near the decision and tries exchanges;
            ``best`` measures all.
        calibration: The data of the recipe that is found.
        held_out: Text of the rows that a choice is judged on; other rows of ``text`` where ``None``.
        held_out_rows: How many these are.
        data_dir: Where sets of text known by name lie.
        journal: The file that lets a search that was stopped go on; whoever uses what was found removes it.
        prune: Whether layers may lose channels, too, where fewer channels of more bits lose less.
        beside: Other checkpoints of the model, to be judged on the same rows.
        progress: Told what is done.
        ranks: Who does it together; all of them find the same.

    Raises:
        UsageError: Nothing so small, or of so little loss, can be made; the message says what the best is.
        OutputError: ``journal`` is something else, or another search works with it.
        RecipeError, DataError: As :func:`goldstick.search` has them.
    """
    refuse_foreign(journal)
    ranks = ranks or Ranks()
    with held_file(journal) if journal is not None and ranks.first else nullcontext():
        layers = find_layers(
            directory, runtime_to_search_for(runtime), method=method, calibration=calibration or Calibration(),
            schemes=schemes, exclude=exclude, effort=effort, rules=rules_of(runtime, tensor_parallel),
        )  # fmt: skip
        settings = SearchSettings(
            text=text, held_out=held_out, held_out_rows=held_out_rows, data_dir=data_dir, effort=effort, prune=prune,
            journal=journal, progress=progress, ranks=ranks,
        )  # fmt: skip
        if prune:
            refuse_pruning(layers, target, settings)
            model = load_float(directory)
            groups = prunable_groups(layers, model)  # none is an error before anything is measured
            search = Search(layers, target, settings, model)
            found = search_pruned(search, groups)
        else:
            if target.max_loss is None:
                refuse_size(layers, target.bytes_of(layers))
            search = Search(layers, target, settings)
            found = search.run()
        return dataclasses.replace(found, record=found.record | {"beside": judge_beside(beside, search.check)})
