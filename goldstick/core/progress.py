"""How a job tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a job is: ``done`` of ``total`` items of ``description``."""

    def __call__(self, description: str, done: int, total: int, /) -> None:
        """Take note."""


def quiet(description: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""
