"""GGUF files made by goldstick and by llama.cpp's quantizer from one checkpoint, by turns: the time and the memory.

    python -m benchmarks.gguf_making --llama-cpp PYTHON [--types q4_k_m] [--rounds 3] [--shape 1.1B]

goldstick reads the checkpoint. llama.cpp's quantizer reads GGUF files only, so the checkpoint is converted to one of
float32 first, each round anew, in a process of its own, by goldstick's writer: what llama.cpp takes is given without
and with that. Figures are medians of rounds and ratios medians of the rounds' ratios, by the clock and by processor
time. goldstick's proof, which llama.cpp has nothing like, is left out of ratios by the clock and is in the others.
Memory below what this process itself holds, half a gigabyte, cannot be seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_llama import SHAPES, config
from goldstick.core.mixture import MIXTURES
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.random_models import float_llama
from tools.llama_cpp.check import WORKER, float_file
from tools.real_models.measured_run import Run, run_measured

ROOT = Path(__file__).resolve().parents[1]
WHOLE = {"targets": {"include": ["@embedding", "@head"]}}
#: What llama.cpp calls a file → the stages that make it.
TYPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "q4_k_m": ("Q4_K_M", [{"rtn": {"scheme": "q4_k_m", "range_search": "ggml"}}]),
    "q6_k": ("Q6_K", [{"rtn": {"scheme": "q6_k", "range_search": "ggml"}}]),
    "q4_0": ("Q4_0", [{"rtn": {"scheme": "q4_0", "range_search": "ggml"}}]),
}


def source_of(folder: Path, shape: str) -> Path:
    """The float model, made where it is not there, in a process of its own: its memory would count in what follows."""
    source = folder / f"{shape}-bfloat16"
    if not (source / "config.json").exists():
        command = [sys.executable, "-m", "benchmarks.gguf_making", "--build", str(source), "--shape", shape]
        subprocess.run(command, cwd=ROOT, check=True)
    return source


def made(folder: Path, source: Path, name: str, python: str, rounds: int = 1) -> dict[str, Any]:
    """Both tools' files of a type, and what they took in so many rounds."""
    published, stages = TYPES[name]
    head = name if name in MIXTURES else "q6_k"
    stages = [*stages, {"rtn": {"scheme": head, "range_search": "ggml", **WHOLE}}]
    output, recipe, log = folder / name, folder / f"{name}.yaml", folder / "log.txt"
    recipe.write_text(json.dumps({"stages": stages, "export": {"format": "gguf"}}))
    plain, theirs = folder / f"{source.name}-gguf", folder / f"llama-cpp-{name}.gguf"
    plain.mkdir(exist_ok=True)
    quantize = [sys.executable, "-m", "goldstick", "quantize", str(source), "-o", str(output), "--recipe", str(recipe)]
    commands = {
        "goldstick": [*quantize, "--overwrite", "--proof", "tensors"],
        "conversion": [sys.executable, "-m", "benchmarks.gguf_making", "--convert", str(source), str(plain)],
        "llama.cpp": [python, str(WORKER), "quantize", str(plain / GGUF_NAME), str(theirs), published, "mixed"],
    }
    runs: dict[str, list[Run]] = {each: [] for each in commands}
    proofs: list[float] = []
    for place in range(rounds):
        order = [*commands] if place % 2 == 0 else ["conversion", "llama.cpp", "goldstick"]
        for each in order:
            runs[each].append(run_measured(commands[each], ROOT, log))
            if each == "goldstick":
                report = json.loads((output / "report.json").read_text())
                proofs.append(report["timing"]["prove"])
    return summary(runs, proofs) | {
        "bytes": {"goldstick": (output / GGUF_NAME).stat().st_size, "llama.cpp": theirs.stat().st_size},
        "proof": report["proof"],
    }


def summary(runs: dict[str, list[Run]], proofs: list[float]) -> dict[str, Any]:
    """Medians of the runs of ``goldstick``, ``conversion`` and ``llama.cpp``, and the rounds' ratios.

    Args:
        runs: Who → the run of each round.
        proofs: Seconds of goldstick's proof in each round.
    """
    clock = {who: [run.seconds for run in each] for who, each in runs.items()}
    processor = {who: [run.processor_seconds for run in each] for who, each in runs.items()}
    without = [whole - proof for whole, proof in zip(clock["goldstick"], proofs, strict=True)]
    return {
        "rounds": len(proofs),
        "seconds": _medians(clock),
        "processor_seconds": _medians(processor),
        "proof_seconds": round(statistics.median(proofs), 1),
        "seconds_without_proof": round(statistics.median(without), 1),
        "ratio_without_proof": _ratios(without, clock),
        "processor_ratio_with_proof": _ratios(processor["goldstick"], processor),
        "peak_bytes": {who: max(run.peak_bytes for run in each) for who, each in runs.items()},
    }


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Of each, and of llama.cpp with the conversion."""
    found = times | {"llama.cpp with conversion": _with_conversion(times)}
    return {who: round(statistics.median(each), 1) for who, each in found.items()}


def _ratios(mine: list[float], times: dict[str, list[float]]) -> dict[str, float]:
    """goldstick's time over llama.cpp's, by what counts as llama.cpp's: below 1 goldstick is faster."""
    both = {"quantizer alone": times["llama.cpp"], "with conversion": _with_conversion(times)}
    return {
        what: round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 3)
        for what, theirs in both.items()
    }


def _with_conversion(times: dict[str, list[float]]) -> list[float]:
    return [a + b for a, b in zip(times["conversion"], times["llama.cpp"], strict=True)]


def main() -> None:
    """Make files and print what that took; or, for a process that is measured, convert a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--llama-cpp", metavar="PYTHON", help="a Python that has llama-cpp-python")
    what.add_argument("--convert", nargs=2, type=Path, metavar=("SOURCE", "FOLDER"), help="write a float GGUF file")
    what.add_argument("--build", type=Path, metavar="FOLDER", help="write the float model")
    parser.add_argument("--shape", choices=SHAPES, default="1.1B")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["q4_k_m"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/gguf-speed").resolve())
    options = parser.parse_args()
    if options.convert:
        float_file(*options.convert)
        return
    if options.build:
        torch.manual_seed(0)
        float_llama(config(options.shape), torch.bfloat16).save_pretrained(options.build)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    source = source_of(options.folder, options.shape)
    # Not the interpreter that a link leads to: the environment is found by the link.
    python = str(Path(options.llama_cpp).absolute())
    for name in options.types:
        print(name, json.dumps(made(options.folder, source, name, python, options.rounds), indent=1), flush=True)


if __name__ == "__main__":
    main()
