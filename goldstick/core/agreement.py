"""Agreement: processes of one run that are about to do different things refuse to start, and say which and what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.core.ranks import Ranks
from goldstick.core.versions import versions
from goldstick.errors import UsageError


def require_same(ranks: Ranks, own: Mapping[str, Any]) -> None:
    """See to it that all ranks are about to do the same.

    Args:
        ranks: The ranks; all of them call this.
        own: What this one is about to do: what the user calls it → plain data.

    Raises:
        UsageError: They are not; the first says which of them differ, and in what. The others end.
    """
    each = ranks.gather({**own, "version of goldstick or a library": versions()})
    differing = [
        f"rank {rank} has another {' and another '.join(name for name in other if other[name] != each[0].get(name))}"
        for rank, other in enumerate(each)
        if other != each[0]
    ]
    if not differing:
        return
    if not ranks.first:
        raise SystemExit(UsageError.exit_code)
    raise UsageError(
        f"The processes of this run are not of one mind: {'; '.join(differing)} than rank 0. Start all of them "
        "with the same command, data and versions."
    )


def sizes_of(directory: Path) -> list[tuple[str, int]]:
    """Name and size of the files that a model is made of: what ranks compare of models that lie in several places."""
    kinds = (".safetensors", ".json", ".gguf", ".model", ".txt")
    return sorted((path.name, path.stat().st_size) for path in directory.glob("*") if path.suffix in kinds)
