"""An option of the command line that had another name, which keeps working and says what it is called now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def renamed_option(name: str, old: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like ``click.option(name, ...)``, and ``old`` is taken for it."""

    def remember(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            click.echo(f"note: {old} is called {name} now", err=True)
            ctx.meta[name] = value

    def take(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        return ctx.meta.get(name) if value is None else value

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hidden: dict[str, Any] = {"hidden": True, "is_eager": True, "expose_value": False, "callback": remember}
        command = click.option(old, type=attributes["type"], **hidden)(command)
        return click.option(name, callback=take, **attributes)(command)

    return decorate
