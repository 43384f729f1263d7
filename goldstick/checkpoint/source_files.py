"""The files of a source while a run reads them: their sha256, and that none becomes another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from goldstick.checkpoint.file_state import FileState, file_sha256, file_state
from goldstick.core.division import balanced
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.errors import CheckpointError, SourceError


class SourceFiles:
    """Files that a run reads, from the moment when their headers were read to its end.

    A file is hashed once. From then on the file system is asked whether anybody has touched it, which costs nothing,
    and only a file that somebody has touched is hashed again.

    Args:
        files: Name → file.
        states: Real path → state of each when its header was read.
    """

    def __init__(self, files: Mapping[str, Path], states: Mapping[Path, FileState]) -> None:
        self._states = {path: states.get(path.resolve()) for path in files.values()}
        self._names = {path: name for name, path in files.items()}
        self._hashes: dict[Path, str] = {}

    def hashes(self, progress: Progress = quiet, ranks: Ranks | None = None) -> dict[str, str]:
        """File name → sha256; what is not known yet is read.

        Args:
            progress: Told which file is read.
            ranks: Who reads them together, a file each; all of them call this.

        Raises:
            SourceError: A file is no longer what it was when the run was planned, or cannot be read.
        """
        ranks, paths = ranks or Ranks(), {name: path for path, name in self._names.items()}
        missing = ranks.of([name for path, name in self._names.items() if path not in self._hashes])

        owners = balanced([_size(paths[name]) for name in missing], ranks.count)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            mine = {
                number: pool.submit(_sha256, paths[name])
                for number, name in enumerate(missing)
                if owners[number] == ranks.rank
            }

            def hashed(number: int) -> str:
                progress(f"hashing {missing[number]}", number, len(missing))
                return mine[number].result()

            for name, digest in zip(missing, ranks.divided(owners, hashed), strict=True):
                self._take(paths[name], digest)
        return {self._names[path]: digest for path, digest in self._hashes.items()}

    def know(self, hashes: Mapping[str, str]) -> None:
        """Take the sha256 of files that were hashed while they were read, by their names.

        Raises:
            SourceError: A file is no longer what it was when the run was planned, or when it was hashed.
        """
        for path, name in self._names.items():
            if name in hashes:
                self._take(path, hashes[name])

    def _take(self, path: Path, digest: str) -> None:
        if file_state(path) != self._states[path] or self._hashes.setdefault(path, digest) != digest:
            raise _changed(path)

    def require_unchanged(self, files: Iterable[Path] | None = None) -> None:
        """Refuse to go on where a file is no longer what it was: what was read of it may be of two files.

        Args:
            files: Those that matter; all where ``None``.

        Raises:
            SourceError: One is not; the message names it.
        """
        for path in self._states if files is None else files:
            now = file_state(path)
            if now != self._states[path]:
                if path not in self._hashes or _sha256(path) != self._hashes[path]:
                    raise _changed(path)
                self._states[path] = now  # touched, and its bytes are the same

    @contextmanager
    def read_again(self) -> Iterator[None]:
        """While a result is compared with its source: if they differ because the source changed, that is the error.

        Raises:
            SourceError: A comparison failed, and a file is no longer what it was.
        """
        try:
            yield
        except CheckpointError:
            self.require_unchanged()
            raise


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error


def _changed(path: Path) -> SourceError:
    return SourceError(
        f"{path} was changed while this run was reading it, so the result would be of two models. Start the run again "
        "when nothing writes into that directory, or put the file back that was there."
    )
