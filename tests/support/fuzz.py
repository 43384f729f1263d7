"""Mutated checkpoints through the readers: ``python -m tests.support.fuzz --inputs N --deep M --seed S --out FILE``.

Every input is a small checkpoint of one of the storage formats, a GGUF file or the checkpoint of a plain module, with
some mutations. Most go through header, config and packed tensors, with a model that was built beforehand; the deep ones
go through ``load``, ``inspect`` and ``doctor``, as a user's do. Anything but a :class:`GoldstickError` ends the run,
and names the seed that gives that input again.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import goldstick
from goldstick import api
from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.checkpoint.source import open_tensors, read_json
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.errors import GoldstickError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.key_report import key_report, require_complete_keys
from goldstick.hf.layers import read_layers
from goldstick.hf.names import CheckpointNames, quiet_libraries
from goldstick.hf.source import open_source
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.inspect.stored_report import report_of_files
from goldstick.structure.network import Network
from tests.support.mutations import CONFIG, WEIGHTS, Files, mutate
from tests.support.quantized_sources import SOURCES
from tests.support.small_checkpoints import SCHEMES, small_checkpoints

#: A single input that takes longer hangs.
SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Seedling:
    """A sound checkpoint to be mutated.

    Attributes:
        files: What of it is mutated.
        read: What reads it without building a model.
        deep: What a user has read it with.
    """

    files: Files
    read: Callable[[Path], object]
    deep: tuple[Callable[[Path], object], ...]


def seedlings(folder: Path) -> dict[str, Seedling]:
    """One for every storage format, others' too, and one of a module that is no transformers model."""
    checkpoints = small_checkpoints(folder)
    found = {form: _of_transformers(checkpoints[form]) for form in SCHEMES}
    found["gguf"] = _of_gguf(checkpoints["gguf"])
    for form, publish in SOURCES.items():
        publish(folder / form)
        found[form] = _of_transformers(folder / form)
    found["plain"] = _of_plain_module(folder / "plain")
    return found


def _of_transformers(directory: Path) -> Seedling:
    """Names and an empty model are made once; the deep ways in make them anew."""
    opened = open_quantized(directory)
    return Seedling(
        files={name: (directory / name).read_bytes() for name in (CONFIG, WEIGHTS)},
        read=lambda folder: _read_layers(folder, opened.names, opened.network),
        deep=(goldstick.load, api.doctor, lambda folder: report_of_files(open_quantized(folder)), _read_numbers),
    )


def _read_numbers(folder: Path) -> None:
    """Everything that a run does to its source: each tensor as a number, one after the other."""
    for info in open_source(folder).tensors.values():
        info.read()


def _of_gguf(directory: Path) -> Seedling:
    opened = open_quantized(directory)

    def read(folder: Path) -> None:
        with checkpoint_directory(folder / GGUF_NAME) as made:
            _read_layers(made, opened.names, opened.network)

    ways = (goldstick.load, api.doctor, read_report)
    return Seedling(
        files={GGUF_NAME: (directory / GGUF_NAME).read_bytes()},
        read=read,
        deep=tuple(lambda folder, way=way: way(folder / GGUF_NAME) for way in ways),
    )


def _of_plain_module(directory: Path) -> Seedling:
    def module() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))

    goldstick.apply(module(), {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}).save(directory)

    def read(folder: Path) -> None:
        goldstick.load(folder, model=module())

    return Seedling(
        files={name: (directory / name).read_bytes() for name in (MANIFEST_NAME, WEIGHTS)},
        read=read,
        deep=(read,),
    )


def _read_layers(folder: Path, names: CheckpointNames, network: Network) -> None:
    """Everything that loading does to a checkpoint before there is a model: header, config, layers, codes."""
    table = read_json(folder / CONFIG, "no checkpoint").get("quantization_config")
    tensors = open_tensors(folder)
    if not isinstance(table, Mapping):
        return
    stored = read_layers(folder, table, names, network, tensors)
    require_complete_keys(folder, key_report(tensors, stored, table, names, network))
    for layer in stored.layers:
        stored.format.unpack(stored.read(layer), layer.scheme, layer.shape[-1])


def run(inputs: int, deep: int, seed: int, folder: Path) -> dict[str, Any]:
    """Read mutated inputs; how many were refused and accepted, and what it took.

    Raises:
        AssertionError: An input gave another error than ours, or took too long; the message names its seed.
    """
    grown = seedlings(folder / "sound")
    forms = list(grown)
    for form in forms:  # what is imported at first use is no input's memory
        place = _written(folder / form, grown[form].files)
        for opened in (grown[form].read, *grown[form].deep):
            opened(place)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    outcomes: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _hang)
    largest = 0
    for number in range(inputs + deep):
        form = forms[number % len(forms)]
        files = mutate(grown[form].files, seed + number)
        largest = max(largest, sum(map(len, files.values())))
        place = _written(folder / form, files)
        deep = grown[form].deep
        opened = grown[form].read if number < inputs else deep[number // len(forms) % len(deep)]
        signal.alarm(SECONDS)
        try:
            opened(place)
            outcomes["accepted"] += 1
        except GoldstickError:
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"--seed {seed + number} on {form}: {type(error).__name__}: {error}") from error
        finally:
            signal.alarm(0)
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return {**outcomes, "largest": largest, "growth": growth, "seconds": time.monotonic() - started}


def _written(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _hang(*_: object) -> None:
    raise TimeoutError(f"not read and not refused after {SECONDS} seconds")


def main() -> None:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--deep", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quiet_libraries()
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.inputs, arguments.deep, arguments.seed, Path(folder))
    print(json.dumps(found))
    if arguments.out:
        arguments.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
