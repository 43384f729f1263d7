"""Results of evaluations, kept on disk and used again where nothing that made them has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from goldstick.checkpoint.file_state import file_sha256
from goldstick.core.json_files import dump_json, parse_json, write_atomically
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.errors import DataError, OutputError, UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.evaluate import Evaluation
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.plain_result import plain_result
from goldstick.evaluation.protocol import Task, TaskResult
from goldstick.jobs.evaluate.fingerprint import task_fingerprint
from goldstick.kernels.input_bits import fewer_bits

#: Names a directory for the cache; without it, it lies where the user's programs keep such files.
DIRECTORY_VARIABLE = "GOLDSTICK_CACHE"

_OF_A_MODEL = ("*.json", "*.safetensors", "*.gguf", "*.model", "*.txt", "*.jinja")
_ABOUT_A_MODEL = {"report.json", "goldstick.json"}


def cache_directory() -> Path | None:
    """Where results are kept: ``$GOLDSTICK_CACHE``, else ``goldstick`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Nowhere where neither variable is set and the user has no home, or one that is not there, as in many containers.
    """
    if given := os.environ.get(DIRECTORY_VARIABLE):
        return Path(given)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "goldstick"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "goldstick" if home.is_dir() else None


def evaluate_with_cache(
    directory: Path,
    tasks: Sequence[str | Task],
    data: DataSource,
    limit: int | None,
    cache: Path | None,
    run: Callable[[Sequence[Task]], Evaluation],
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Evaluate a model on tasks, running only those whose result is not known yet.

    A result is used again where these are equal: the bytes of the model and its tokenizer, the task, its protocol and
    its code, the limit, the data as they were read, the versions of goldstick, torch and transformers, and the bits
    that inputs are rounded to. What cannot
    be kept, such as on a full disk, is measured again the next time, and so is a task that cannot be told from another
    (see :func:`goldstick.jobs.evaluate.fingerprint.task_fingerprint`).

    Args:
        directory: The model's.
        tasks: The tasks, or their names.
        data: Where their data are.
        limit: The most items of each.
        cache: Where results are kept; of several ranks the first looks there.
        run: Measures the model on these tasks.
        progress: Told of every result that was known.
        ranks: Who measures together.

    Raises:
        UsageError: There is no such task.
        DataError: The data of a task are missing or malformed.
    """
    chosen, ranks, paths = find_tasks(tasks), ranks or Ranks(), dict[str, Path]()
    if ranks.first and cache is not None:
        model = model_digest(directory)
        digests = {name: _digest(model, task, data, limit) for name, task in chosen.items()}
        kept = cache / "evaluations"
        paths = {name: kept / f"{digest}.json" for name, digest in digests.items() if digest is not None}
    known = ranks.of({name: found for name, path in paths.items() if (found := _read(path)) is not None})
    for name, (result, _) in known.items():
        progress(f"{name}: measured before", result.n, result.n)
    missing = [task for name, task in chosen.items() if name not in known]
    if missing:
        made = run(missing)
        for name, result in made.results.items():
            known[name] = (result, made.tokenizer)
            if name in paths:
                _write(paths[name], name, made)
    return Evaluation(results={name: known[name][0] for name in chosen}, tokenizer=known[next(iter(chosen))][1])


def model_digest(directory: Path) -> str:
    """SHA-256 of the names and bytes of a model's files: weights, config and tokenizer, without reports."""
    digest = hashlib.sha256()
    files = {path for pattern in _OF_A_MODEL for path in directory.glob(pattern)}
    for path in sorted(path for path in files if path.name not in _ABOUT_A_MODEL):
        digest.update(f"{path.name}\n{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _digest(model: str, task: Task, data: DataSource, limit: int | None) -> str | None:
    found = task_fingerprint(task, data)
    if found is None:
        return None
    versions = [version(name) for name in ("torch", "transformers")] + [_own_version()]
    if bits := fewer_bits():
        versions.append(f"inputs of {bits} bits")
    return hashlib.sha256(repr((model, found, limit, versions)).encode()).hexdigest()


def _own_version() -> str:
    from goldstick import __version__

    return __version__


def _read(path: Path) -> tuple[TaskResult, str] | None:
    try:
        data: Any = parse_json(path.read_text(encoding="utf-8"), str(path))
        result = TaskResult(protocol=data["protocol"], n=data["n"], metrics=data["metrics"], details=data["details"])
        return plain_result(path.name, result), data["tokenizer"]
    except (OSError, UnicodeDecodeError, DataError, UsageError, KeyError, TypeError):
        return None  # not there, or damaged: it is measured anew


def _write(path: Path, name: str, made: Evaluation) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = json.loads(json.dumps(made.to_dict()["tasks"][name]))
        write_atomically(path, dump_json(entry).encode())
    except (OSError, OutputError):
        return  # the result itself is there; only the next run takes longer
