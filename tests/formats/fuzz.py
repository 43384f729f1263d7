"""Mutated checkpoints through the readers: ``python -m tests.formats.fuzz --inputs N --deep M --seed S --out FILE``.

Every input is a small checkpoint of one of the storage formats with some mutations. Most go through header, config
and packed tensors, with a model that was built beforehand; the deep ones go through ``load``, ``inspect`` and
``doctor``, as a user's do. Anything but a :class:`GoldstickError` ends the run, and names the seed that gives that
input again.
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

import goldstick
from goldstick import api
from goldstick.errors import GoldstickError
from goldstick.formats.source import open_tensors, read_json
from goldstick.formats.transformers_account import account, require_account
from goldstick.formats.transformers_checkpoint import open_quantized
from goldstick.formats.transformers_layers import read_layers
from goldstick.formats.transformers_names import CheckpointNames, quiet_libraries
from goldstick.pipeline.stored_report import report_of_files
from goldstick.structure.network import Network
from tests.formats.mutations import CONFIG, WEIGHTS, Files, mutate
from tests.formats.small_checkpoints import SCHEMES, small_checkpoints

#: A single input that takes longer hangs.
SECONDS = 20
_DEEP: tuple[Callable[[Path], object], ...] = (
    goldstick.load,
    api.doctor,
    lambda folder: report_of_files(open_quantized(folder)),
)


@dataclass(frozen=True, kw_only=True)
class Seedling:
    """A sound checkpoint to be mutated, and its model, built once.

    Attributes:
        files: Its config and weights.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
    """

    files: Files
    names: CheckpointNames
    network: Network


def seedlings(folder: Path) -> dict[str, Seedling]:
    """One for every storage format."""
    found = {}
    for form, directory in small_checkpoints(folder).items():
        if form in SCHEMES:
            opened = open_quantized(directory)
            files = {name: (directory / name).read_bytes() for name in (CONFIG, WEIGHTS)}
            found[form] = Seedling(files=files, names=opened.names, network=opened.network)
    return found


def read_all(folder: Path, seedling: Seedling) -> None:
    """Everything that loading does to a checkpoint before there is a model: header, config, layers, codes."""
    table = read_json(folder / CONFIG, "no checkpoint").get("quantization_config")
    tensors = open_tensors(folder)
    if not isinstance(table, Mapping):
        return
    stored = read_layers(folder, table, seedling.names, seedling.network, tensors)
    require_account(folder, account(tensors, stored, table, seedling.names, seedling.network))
    for layer in stored.layers:
        stored.format.unpack(stored.read(layer), layer.scheme, layer.shape[-1])


def run(inputs: int, deep: int, seed: int, folder: Path) -> dict[str, Any]:
    """Read mutated inputs; how many were refused and accepted, and what it took.

    Raises:
        AssertionError: An input gave another error than ours, or took too long; the message names its seed.
    """
    grown = seedlings(folder / "sound")
    forms = list(grown)
    place = folder / "mutated"
    place.mkdir()
    for form in forms:  # what is imported at first use is no input's memory
        _write(place, grown[form].files)
        read_all(place, grown[form])
        for opened in _DEEP:
            opened(place)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    outcomes: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _hang)
    largest = 0
    for number in range(inputs + deep):
        form = forms[number % len(forms)]
        files = mutate(grown[form].files, seed + number)
        largest = max(largest, sum(map(len, files.values())))
        _write(place, files)
        signal.alarm(SECONDS)
        try:
            if number < inputs:
                read_all(place, grown[form])
            else:
                _DEEP[number // len(forms) % len(_DEEP)](place)
            outcomes["accepted"] += 1
        except GoldstickError:
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"--seed {seed + number} on {form}: {type(error).__name__}: {error}") from error
        finally:
            signal.alarm(0)
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return {**outcomes, "largest": largest, "growth": growth, "seconds": time.monotonic() - started}


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


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
