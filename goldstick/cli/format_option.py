"""The names of storage formats on the command line, from the registry when they are asked for."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from goldstick.formats import FORMATS

#: goldstick's own, in a sentence of a help text.
OWN_FORMATS = f"{', '.join(FORMATS.own_names[:-1])} or {FORMATS.own_names[-1]}"


class FormatName(click.ParamType[str]):
    """A storage format of goldstick's or of an installed package, or one of some further words.

    Looking through the installed packages takes time that ``--help`` does not have, so it is not done before.
    """

    name = "format"

    def __init__(self, *further: str) -> None:
        self._further = further

    def _choice(self) -> click.Choice[str]:
        return click.Choice([*self._further, *FORMATS])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, checked."""
        return self._choice().convert(value, param, ctx)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """The names to choose from."""
        return self._choice().get_missing_message(param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with what is typed."""
        return self._choice().shell_complete(ctx, param, incomplete)
