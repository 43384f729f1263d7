"""The exceptions goldstick raises on purpose.

Every message is one paragraph that says what is wrong, where, and what to do about it. The command line prints
it without a traceback and leaves with the class's ``exit_code``.

::

    GoldstickError                 1   the root: catch this to catch everything below
    ├── UsageError                 2   a call or a command line that cannot mean anything
    │   └── RecipeError            2   a recipe, scheme or target pattern that is wrong or illegal for the model
    ├── SourceError                1   the model to be compressed cannot be read or must not be trusted
    ├── StructureError             1   the network's structure cannot be understood well enough to go on
    ├── QuantizationError          1   numbers that cannot be quantized (NaN, infinity, overflowing scales)
    ├── FormatError                1   a storage format cannot hold, or a file does not hold, what it should
    ├── CheckpointError            1   a compressed checkpoint that is damaged, incomplete or fails its proof
    ├── NotRunError                1   a model that was to be tried does not run
    ├── OutputError                1   the output directory exists, is not writable or the disk is full
    ├── DataError                  1   a data set that is missing, malformed or too short
    │   └── ShortageError          1   a data set of fewer samples than asked for
    ├── TrainingError              1   a training that diverged, has nothing to learn, or whose checkpoint is another's
    ├── RankError                  1   another process of a run in several is lost, or does something else
    └── KernelError                1   no backend runs this layer, or a backend was given wrong shapes
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Signs of a message: more is no paragraph any more, and what makes it long is out of a file.
_LONGEST = 8000


class GoldstickError(Exception):
    """Root of the tree; never raised itself."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "") -> None:
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST - 1000]} … {message[-900:]}"
        super().__init__(message)


class UsageError(GoldstickError):
    """A call or a command line that cannot mean anything."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe, a scheme or a target pattern that is wrong, or illegal for this model."""


class SourceError(GoldstickError):
    """The model to be compressed cannot be read, or must not be trusted."""


class StructureError(GoldstickError):
    """The structure of the network cannot be understood well enough to go on."""


class QuantizationError(GoldstickError):
    """Numbers that cannot be quantized: NaN, infinity, a scale that overflows its type."""


class FormatError(GoldstickError):
    """A storage format that cannot hold, or a file that does not hold, what it should."""


class NotRunError(GoldstickError):
    """A model that was to be tried does not run."""


class CheckpointError(GoldstickError):
    """A compressed checkpoint that is damaged or incomplete, or that fails its proof."""


class OutputError(GoldstickError):
    """The output directory exists, is not writable, or the disk is full."""


class DataError(GoldstickError):
    """A data set that is missing, malformed or too short."""


def in_a_recipe(setting: str, value: str) -> str | None:
    """A setting as a recipe has it: ``samples: 22``."""
    return f"{setting}: {value.lower()}" if value else setting


class ShortageError(DataError):
    """A data set of fewer samples than asked for.

    Args:
        found: What there is, and what was asked for.
        available: How many samples there are.
        ways: What would help, each in words; ``{samples:22}`` in them is the setting ``samples`` at 22.
        naming: How whoever asked writes a setting and its value; ways with one that it does not have are left out.
    """

    def __init__(
        self,
        found: str,
        available: int,
        ways: Sequence[str],
        naming: Callable[[str, str], str | None] = in_a_recipe,
    ) -> None:
        self.found, self.available, self.ways = found, available, tuple(ways)
        every = [words for way in ways if (words := _named(way, naming)) is not None]
        super().__init__(f"{found}: use " + " or ".join([", ".join(every[:-1]), every[-1]] if every[1:] else every))

    def named(self, naming: Callable[[str, str], str | None]) -> ShortageError:
        """The same in the words of another interface."""
        return ShortageError(self.found, self.available, self.ways, naming)


def _named(way: str, naming: Callable[[str, str], str | None]) -> str | None:
    """A way with its settings as they are written; ``None`` where there is no such setting."""
    words = ""
    for text, setting, value, _ in string.Formatter().parse(way):
        written = naming(setting, value or "") if setting else ""
        if written is None:
            return None
        words += text + written
    return words


class TrainingError(GoldstickError):
    """A training that diverged or has nothing to learn, or a checkpoint of another training."""


class RankError(GoldstickError):
    """Another process of a run in several is lost."""


class KernelError(GoldstickError):
    """No backend runs this layer, or a backend was handed wrong shapes or types."""
