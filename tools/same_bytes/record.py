"""Writing a record: the sha256 of every file of every case, and the help of every command."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

import goldstick
from goldstick.cli import main
from goldstick.training import TrainingTask
from tools.same_bytes import models
from tools.same_bytes.cases import CASES, Case

#: What a report says of the run and not of the result: times, memory, versions, and hashes over times of files.
VOLATILE = ("seconds", "timing", "peak_memory", "environment", "run")
_TEXT = "The harbour lies on the north side of the island. Boats leave at seven, and at noon the market opens. " * 40


def record(folder: Path, wanted: str = "") -> dict[str, Any]:
    """Run all cases whose name contains ``wanted`` in ``folder``, which stays, and describe what they wrote."""
    torch.set_num_threads(1)
    os.chdir(folder)  # so that reports name the same relative paths everywhere
    Path("text.txt").write_text(_TEXT)
    checkpoints: dict[str, Any] = {}
    for case in CASES:
        if wanted in case.name:
            began = time.perf_counter()
            checkpoints |= outcome_of(case)
            print(f"{time.perf_counter() - began:6.1f} s  {case.name}", flush=True)
    return {"checkpoints": checkpoints, "help": {} if wanted else help_texts()}


def outcome_of(case: Case) -> dict[str, Any]:
    """The files of a case's checkpoint and of its exports, or the error in their place."""
    output = Path("out") / case.name.replace("/", "_")
    found = {case.name: _files_or_error(lambda: make(case, output), output)}
    for name in case.exports:
        target = output.with_name(f"{output.name}_to_{name}")

        def export(name: str = name, target: Path = target) -> None:
            goldstick.export(output, name, output=target, overwrite=True)

        found[f"{case.name} to {name}"] = _files_or_error(export, target)
    return found


def make(case: Case, output: Path) -> None:
    """Write the checkpoint of a case."""
    torch.manual_seed(0)
    if case.way == "memory":
        model = models.build(case.model)
        given: dict[str, Any] = {}
        words = str(case.recipe["stages"])
        if any(stage in words for stage in ("slb", "scop")):
            given["training"] = TrainingTask(batches=models.labelled())
        elif any(stage in words for stage in ("gptq", "awq", "kv_cache", "static", "finetune")):
            given["data"] = models.batches(model)
        goldstick.apply(model, case.recipe, **given).save(output, overwrite=True)
        return
    source = Path("models") / case.model
    if case.model != "reference" and not source.exists():
        models.write(case.model, source)
    name = case.model if case.model == "reference" else str(source)
    if case.way == "command":
        goldstick_command("quantize", name, "-o", str(output), "--overwrite", *case.arguments)
        return
    goldstick.quantize(name, case.recipe, output=output, overwrite=True, **case.options)


def _files_or_error(run: Any, output: Path) -> dict[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
    except goldstick.GoldstickError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    settle(output)
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settle(directory: Path, page: bool = True) -> None:
    """Empty the volatile fields of a report, and render its ``page`` from what is left."""
    file = directory / "report.json"
    if file.exists():
        file.write_text(json.dumps(_settled(json.loads(file.read_text())), indent=1))
        if page:
            goldstick_command("report", str(directory))


def _settled(value: Any) -> Any:
    if isinstance(value, list):
        return [_settled(one) for one in value]
    if isinstance(value, dict):
        return {key: _emptied(one) if key in VOLATILE else _settled(one) for key, one in value.items()}
    return value


def _emptied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _emptied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_emptied(one) for one in value]
    return type(value)()


def goldstick_command(*words: str) -> str:
    """What a command of the console prints. It runs in this process, since commands are many and imports slow."""
    result = CliRunner().invoke(main, list(words), terminal_width=120)
    if result.exit_code:
        raise RuntimeError(f"goldstick {' '.join(words)} ended with {result.exit_code}: {result.output}")
    return result.output


def help_texts(*words: str) -> dict[str, str]:
    """The help of a command and of all below it."""
    command: Any = main
    for word in words:
        command = command.commands[word]
    texts = {" ".join(("goldstick", *words)): goldstick_command(*words, "--help")}
    for word in getattr(command, "commands", {}):
        texts |= help_texts(*words, word)
    return texts
