"""Rows of a parquet file: the one place that imports pyarrow, and only when such a file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from goldstick.errors import DataError


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (row number from 1, row) with those of ``columns`` that the file has; the others are not read.

    Raises:
        DataError: The file is no parquet file, or it has none of the columns.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            present = file.schema_arrow.names
            wanted = [name for name in columns if name in present]
            if not wanted:
                raise DataError(f"{path}: no column {_either(columns)}, only {', '.join(present) or 'none at all'}")
            batches = file.iter_batches(columns=wanted)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as parquet ({' '.join(str(error).split())})") from error


def _either(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
