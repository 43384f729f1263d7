"""Commands run in the process of a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from goldstick.cli import main

#: The fixture ``assert_refused``: runs a command that must fail, and gives what it says.
Refused = Callable[..., str]


def run(*arguments: str, said: str | bytes | None = None) -> Result:
    """Run a command in this process, with something on its standard input."""
    return CliRunner().invoke(main, list(arguments), input=said)


def quantize(source: Path | str, *options: str) -> tuple[str, ...]:
    """The arguments of a quantization of ``source`` into a directory beside it."""
    return ("quantize", str(source), "-o", str(Path(source).parent / "out"), "--recipe", "rtn-w4a16-g32", *options)


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a JSON file says, in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
