"""What is changed in a model to make it faster, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change that was made to a model, or that was not.

    Attributes:
        what: What the modules became, or were to become.
        modules: Paths of the modules.
        reason: Why it was not made; ``None`` where it was.
    """

    what: str
    modules: tuple[str, ...]
    reason: str | None = None

    def __str__(self) -> str:
        text = f"{self.what}: {', '.join(self.modules)}"
        return text if self.reason is None else f"{text}: not done, {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """What :func:`optimize` did to a model.

    Attributes:
        changes: Every change, in the order in which the model runs.
    """

    changes: tuple[Change, ...]

    @property
    def done(self) -> tuple[Change, ...]:
        """Those that were made."""
        return tuple(change for change in self.changes if change.reason is None)

    @property
    def left(self) -> tuple[Change, ...]:
        """Those that were not, each with its reason."""
        return tuple(change for change in self.changes if change.reason is not None)

    def __str__(self) -> str:
        counts: dict[tuple[str, str | None], int] = {}
        for change in self.changes:
            counts[change.what, change.reason] = counts.get((change.what, change.reason), 0) + 1
        lines = [
            f"{what}: {count} time{'s' * (count > 1)}" + (f" not done, {reason}" if reason else "")
            for (what, reason), count in counts.items()
        ]
        return "\n".join(lines) or "nothing to optimize"


Undo = Callable[[], None]
Step = tuple[Change, Undo]


def nothing() -> None:
    """Undo a change that was not made."""
