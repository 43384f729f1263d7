"""Settings that messages name, as options of the command that runs."""

from __future__ import annotations

from collections.abc import Callable

import click

from goldstick.errors import in_a_recipe


def options_of(command: click.Command) -> Callable[[str, str], str | None]:
    """How a command writes a setting and its value; ``None`` for settings that it has no option for.

    Args:
        command: The command. One that searches may take settings of two texts: of the rows that a search looks at
            (``search_samples``), and of the recipe's data (``recipe_samples``). ``--samples`` is of the recipe's where
            there is a ``--search-samples``, too.
    """
    options = {str(one.name): one.opts[0] for one in command.params if isinstance(one, click.Option)}
    of_rows = () if "search_samples" in options else ("samples", "seq_len")

    def written(setting: str, value: str) -> str | None:
        kind, _, name = setting.partition("_")
        if kind == "recipe" and (name in of_rows or name not in options):
            return f"{in_a_recipe(name, value)} under a recipe's calibration" if "recipe" in options else None
        option = options.get(name if kind == "recipe" or (kind == "search" and of_rows) else setting)
        return None if option is None else option if value in ("", "True") else f"{option} {value}"

    return written
