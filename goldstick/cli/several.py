"""Commands in several processes: those that are divided over them, and those that would do the same several times."""

from __future__ import annotations

import os

#: What each of several processes would do whole.
_WHOLE = ("verify", "doctor", "generate", "chat", "serve", "bench", "importance")


def refuse_copies(command: str | None) -> None:
    """Refuse to do the same in several processes.

    Raises:
        UsageError: torchrun started several, and the command is not divided over them.
    """
    if command in _WHOLE:
        refuse_several(f"goldstick {command}")


def refuse_several(what: str) -> None:
    """Refuse several processes for what is not divided; UsageError, which says how to run it alone."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return
    from goldstick.core.processes import process_count, rank
    from goldstick.errors import UsageError

    if process_count() > 1:
        raise UsageError(
            f"WORLD_SIZE={process_count()} and RANK={rank()} say that this is one of {process_count()} processes, and "
            f"'{what}' is not divided: each would do the same. Start one process, or unset RANK and WORLD_SIZE."
        )


def prints() -> bool:
    """Whether this process prints and writes what was found: of several the first."""
    from goldstick.core.processes import rank

    return rank() == 0
