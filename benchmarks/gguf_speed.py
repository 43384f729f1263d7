"""GGUF files of a large model: how long goldstick and llama.cpp take to make them, and to run them.

    OMP_NUM_THREADS=2 python -m benchmarks.gguf_speed --llama-cpp PYTHON [--types q4_k_m q6_k q4_0] [--isas avx512 avx2]
        [--input-bits 16 8]

Makes a Llama with random weights in bfloat16 once (``--folder`` keeps it), quantizes it without data with both, by
turns and each in a process of its own (``--makings`` rounds, :mod:`benchmarks.gguf_making`), and runs goldstick's
file in both, by turns: some tokens of decoding, or a pass over a prompt. ``PYTHON`` has llama-cpp-python. Figures are
medians of rounds, ratios medians of the rounds' ratios. The floor of a token is the time of a plain read of as many
bytes as all matrices have but the embedding, measured in the same run. goldstick runs once for each of ``--isas``, in
a process of its own, with inputs rounded to 16 bits and to 8, as llama.cpp rounds them; llama.cpp is what was built,
for the machine at hand. ``python -m tools.docs`` writes the tables of docs/k-quants.md and docs/comparison.md from the
results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import goldstick
from benchmarks.decode import InProcess, Network
from benchmarks.gguf_making import TYPES, made, source_of
from benchmarks.llama_cpp_decode import LlamaCpp
from benchmarks.random_llama import SHAPES
from goldstick.checkpoint.gguf.shards import read_model
from goldstick.formats.gguf import GGUF_NAME
from goldstick.jobs.save.records import environment
from goldstick.kernels import cpu
from goldstick.kernels.input_bits import INPUT_BITS
from tools.real_models.measure import processor_name

RESULTS = Path(__file__).resolve().parent / "results" / "gguf-speed.json"


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
            plain = statistics.median(times["read"])
            found[what] |= {
                "floor_ms": round(1e3 * plain, 2),
                "bandwidth_gb_s": round(words.nbytes / plain / 1e9, 1),
                "fraction": round(floor, 3),
            }
        print(name, what, found[what], flush=True)
    return found


def main() -> None:
    """Make, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", metavar="PYTHON", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--shape", choices=SHAPES, default="1.1B")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--what", nargs="+", choices=["make", "run"], default=["make", "run"])
    parser.add_argument("--isas", nargs="+", choices=["amx", "avx512", "avx2"], default=[cpu.chosen_isa()])
    parser.add_argument("--input-bits", nargs="+", type=int, choices=INPUT_BITS, default=[16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--makings", type=int, default=3, help="rounds of making files")
    parser.add_argument("--rounds", type=int, default=9, help="of decoding")
    parser.add_argument("--prompts", type=int, default=3, help="rounds of prompts; 0: none")
    parser.add_argument("--folder", type=Path, default=Path("build/gguf-speed").resolve())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    source = source_of(options.folder, options.shape)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for what in options.what:  # all files first: memory that this process held would count in what makes them
        for name in options.types:
            entry = results.setdefault(f"{options.shape} {name}", {})
            if what == "make":
                python = str(Path(options.llama_cpp).absolute())
                entry["make"] = made(options.folder, source, name, python, options.makings)
                print(name, entry["make"], flush=True)
            elif cpu.chosen_isa() in options.isas:
                for bits in options.input_bits:
                    goldstick.set_input_bits(bits)
                    found = run(options.folder, name, options) | {"threads": options.threads}
                    how = cpu.chosen_isa() if bits == INPUT_BITS[0] else f"{cpu.chosen_isa()}, {bits} bits"
                    entry.setdefault("runs", {})[how] = found
            entry |= {"environment": environment(), "processor": processor_name()}
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "run" in options.what:
        for isa in [each for each in options.isas if each != cpu.chosen_isa()]:
            arguments = [*sys.argv[1:], "--what", "run", "--isas", isa]  # of options given twice the last counts
            command = [sys.executable, "-m", "benchmarks.gguf_speed", *arguments]
            subprocess.run(command, env=os.environ | {"GOLDSTICK_ISA": isa}, check=True)


if __name__ == "__main__":
    main()
