"""Sidecars: tokenizers and settings beside the weights that nobody can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from goldstick.checkpoint.sidecars import MODULES_NAME, SIDECARS
from goldstick.jobs.doctor.finding import Finding


def sidecar_findings(directory: Path) -> Iterator[Finding]:
    """Files of JSON beside the weights that are none, as far as a checkpoint carries them on."""
    for path in sorted(directory.iterdir()):
        if path.suffix == ".json" and SIDECARS.fullmatch(path.name) and (why := _not_read(path)):
            yield Finding(
                severity="fault",
                check="not-json",
                what="a file beside the weights cannot be read as JSON, so that what it describes is not loaded",
                where=(f"{path.name}: {why}",),
                remedy="fetch it again, or take it from the model it was made from; a pointer of Git LFS stands for "
                "the file itself",
            )


def _not_read(path: Path) -> str:
    """Why a file is no JSON that its readers take, or nothing."""
    if path.exists() and not path.is_file():
        return "no file"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        return f"{error.msg} in line {error.lineno}"
    except (OSError, ValueError, RecursionError) as error:
        return str(error)[:200]
    kind = list if path.name == MODULES_NAME else dict
    return "" if isinstance(value, kind) else f"no JSON {'object' if kind is dict else 'list'}"
