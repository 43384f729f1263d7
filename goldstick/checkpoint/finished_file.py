"""A file that is either finished or given up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class FinishedFile(ABC):
    """A file being written: at the end of a ``with`` statement it is closed, or abandoned if there was an error."""

    @abstractmethod
    def close(self) -> None:
        """Sync the file to disk and close it.

        Raises:
            FormatError: Something that was promised is missing.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Close the file, whatever is missing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
