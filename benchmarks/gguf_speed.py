"""GGUF files of a large model: how long goldstick and llama.cpp take to make them, and to run them.

    OMP_NUM_THREADS=2 python -m benchmarks.gguf_speed --llama-cpp PYTHON [--types q4_k_m q6_k q4_0]

Makes a Llama with random weights in bfloat16 once (``--folder`` keeps it), quantizes it without data with both, each in
a process of its own, and runs goldstick's file in both, by turns: some tokens of decoding, or a pass over a prompt.
``PYTHON`` has llama-cpp-python. Figures are medians of rounds, ratios medians of the rounds' ratios. The floor of a
token is the time of a plain read of as many bytes as all matrices have but the embedding, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import goldstick
from benchmarks.decode import InProcess, Network
from benchmarks.llama_cpp_decode import LlamaCpp
from benchmarks.random_llama import SHAPES, config
from goldstick.checkpoint.gguf.shards import read_model
from goldstick.core.mixture import MIXTURES
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.random_models import float_llama
from goldstick.jobs.save.records import environment
from goldstick.kernels import cpu
from tools.llama_cpp.check import WORKER, float_file
from tools.real_models.measured_run import run_measured

RESULTS = Path(__file__).resolve().parent / "results" / "gguf-speed.json"
WHOLE = {"targets": {"include": ["@embedding", "@head"]}}
#: What llama.cpp calls a file → the stages that make it.
TYPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "q4_k_m": ("Q4_K_M", [{"rtn": {"scheme": "q4_k_m", "range_search": "ggml"}}]),
    "q6_k": ("Q6_K", [{"rtn": {"scheme": "q6_k", "range_search": "ggml"}}]),
    "q4_0": ("Q4_0", [{"rtn": {"scheme": "q4_0", "range_search": "ggml"}}]),
}


def source_of(folder: Path, shape: str) -> Path:
    """The float model, made where it is not there."""
    source = folder / f"{shape}-bfloat16"
    if not (source / "config.json").exists():
        torch.manual_seed(0)
        float_llama(config(shape), torch.bfloat16).save_pretrained(source)
    return source


def made(folder: Path, source: Path, name: str, python: str) -> dict[str, Any]:
    """Both tools' files of a type, and what they took."""
    published, stages = TYPES[name]
    head = name if name in MIXTURES else "q6_k"
    stages = [*stages, {"rtn": {"scheme": head, "range_search": "ggml", **WHOLE}}]
    output, recipe, log = folder / name, folder / f"{name}.yaml", folder / "log.txt"
    recipe.write_text(json.dumps({"stages": stages, "export": {"format": "gguf"}}))
    command = [sys.executable, "-m", "goldstick", "quantize", str(source), "-o", str(output), "--recipe", str(recipe)]
    mine = run_measured([*command, "--overwrite", "--proof", "tensors"], folder, log)
    plain = folder / f"{source.name}-gguf"
    if not (plain / GGUF_NAME).exists():
        plain.mkdir(exist_ok=True)
        float_file(source, plain)
    theirs = folder / f"llama-cpp-{name}.gguf"
    quantize = [python, str(WORKER), "quantize", str(plain / GGUF_NAME), str(theirs), published, "mixed"]
    other = run_measured(quantize, folder, log)
    report = json.loads((output / "report.json").read_text())
    return {
        "seconds": {"goldstick": round(mine.seconds, 1), "llama.cpp": round(other.seconds, 1)},
        "processor_seconds": {
            "goldstick": round(mine.processor_seconds, 1),
            "llama.cpp": round(other.processor_seconds, 1),
        },
        "seconds_without_proof": round(sum(v for k, v in report["timing"].items() if k != "prove"), 1),
        "peak_bytes": {"goldstick": report["peak_memory"], "llama.cpp": other.peak_bytes},
        "bytes": {"goldstick": (output / GGUF_NAME).stat().st_size, "llama.cpp": theirs.stat().st_size},
        "proof": report["proof"],
    }


def run(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of goldstick and of llama.cpp on goldstick's file, and the floor of a token."""
    file = folder / name / GGUF_NAME
    theirs = LlamaCpp(options.llama_cpp, file, options.threads, "wall")
    model = goldstick.load(folder / name)
    print(goldstick.optimize(model))
    mine = InProcess(model, time.perf_counter)
    networks: dict[str, Network] = {"goldstick": mine, "llama.cpp": theirs}
    read = sum(tensor.nbytes for name, tensor in read_model(file).tensors.items() if name != "token_embd.weight")
    words = torch.randint(0, 1 << 30, (read // 4096, 1024), dtype=torch.int32)
    found: dict[str, Any] = {}
    for what, tokens, rounds in (("decode", 8, options.rounds), ("prefill", 512, options.prompts)):
        if rounds == 0:
            continue
        times: dict[str, list[float]] = {each: [] for each in (*networks, "read")}
        for place in range(rounds + 1):
            for each, network in networks.items():
                seconds = getattr(network, what)(tokens)
                if place:
                    times[each].append(seconds / tokens)
            start = time.perf_counter()
            cpu._C.read_words(words, options.threads)
            if place:
                times["read"].append(time.perf_counter() - start)
        ratio = statistics.median(b / a for a, b in zip(times["goldstick"], times["llama.cpp"], strict=True))
        found[what] = {
            "tokens_s": {each: round(1 / statistics.median(times[each]), 2) for each in networks},
            "times_llama_cpp": round(ratio, 3),
        }
        if what == "decode":
            floor = statistics.median(a / b for a, b in zip(times["read"], times["goldstick"], strict=True))
            found[what] |= {"floor_ms": round(1e3 * statistics.median(times["read"]), 2), "fraction": round(floor, 3)}
        print(name, what, found[what], flush=True)
    return found


def main() -> None:
    """Make, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", metavar="PYTHON", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--shape", choices=SHAPES, default="1.1B")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--what", nargs="+", choices=["make", "run"], default=["make", "run"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="of decoding")
    parser.add_argument("--prompts", type=int, default=3, help="rounds of prompts; 0: none")
    parser.add_argument("--folder", type=Path, default=Path("build/gguf-speed").resolve())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    source = source_of(options.folder, options.shape)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.types:
        entry = results.setdefault(f"{options.shape} {name}", {})
        if "make" in options.what:
            entry["make"] = made(options.folder, source, name, options.llama_cpp)
            print(name, entry["make"], flush=True)
        if "run" in options.what:
            entry["run"] = run(options.folder, name, options) | {"threads": options.threads, "isa": cpu.chosen_isa()}
        entry["environment"] = environment()
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
