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
        if made:
            error.add_note(f"{' and '.join(map(str, made))} {'is' if len(made) == 1 else 'are'} complete.")
        if made and repository is not None:
            error.add_note(f"Nothing was pushed: 'hf upload {repository} {outputs[0]}' does that.")
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
