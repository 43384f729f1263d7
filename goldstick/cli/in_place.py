"""What is in place when a command ends early is said, since it is whole and can be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming_what_is_in_place(outputs: Sequence[Path], repository: str | None) -> Iterator[None]:
    """Add to what ends a command early which of its outputs came into place, and that nothing was pushed.

    Args:
        outputs: The directories to make, each of which appears whole.
        repository: Where the first of them is to be pushed afterwards, if anywhere.
    """
    before = {output: _identity(output) for output in outputs}
    try:
        yield
    except BaseException as error:
        made = [output for output in outputs if _identity(output) not in (None, before[output])]
        notes = [f"{output} is finished and in its place." for output in made]
        if outputs[0] in made and repository is not None:
            notes.append(f"Nothing was pushed: 'hf upload {repository} {outputs[0]}' does that.")
        for note in notes:
            if note not in getattr(error, "__notes__", ()):  # who put it there may have said so
                error.add_note(note)
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
