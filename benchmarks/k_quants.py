"""What K-quant mixtures cost in accuracy: llama.cpp's own rounding beside GPTQ on the same blocks.

    python -m benchmarks.k_quants [--models reference] [--out benchmarks/results/k-quants.json]

Each row applies a recipe in memory and compares next tokens with the float model's: mean KL over the held-out text.
``rtn`` and ``imatrix`` give, byte for byte, the blocks that llama.cpp's quantizer makes, plain and with the importance
matrix of the same calibration text (``python -m tools.ggml.check``); every row of a mixture has the same size. The
ratio of two means is of the same documents, drawn again 2,000 times for its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import goldstick
from benchmarks.accuracy import Bench
from benchmarks.accuracy_cases import subjects
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save.records import environment
from goldstick.recipes.effort import Effort
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.sentence import parse

MIXTURES = ("q4_k_m", "q3_k_m", "q2_k_m", "q4_k_s", "iq4_xs_m")
BEST = "gptq, --effort best"
METHODS = ("rtn", "imatrix", "gptq", "gptaq", BEST)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="reference")
    parser.add_argument("--mixtures", default=",".join(MIXTURES))
    parser.add_argument("--methods", nargs="*", default=METHODS, help="the others stay as they were measured")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/k-quants.json"))
    arguments = parser.parse_args()
    quiet_libraries()
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    found["environment"] = environment()
    for model in arguments.models.split(","):
        bench = Bench.of(subjects()[model])
        for mixture in arguments.mixtures.split(","):
            rows = found.setdefault(model, {}).setdefault(mixture, {})
            for method in arguments.methods:
                words = f"{method.partition(',')[0]}-{mixture}"
                rows[method] = measure(bench, words, "best" if method == BEST else "fast")
            for method, row in rows.items():
                row["to_imatrix"] = ratio(row, rows["imatrix"])
                low, middle, high = row["to_imatrix"]
                print(
                    f"{model} {mixture:9s} {method:8s} KL {row['kl']:.5f}, {middle:.2f} ({low:.2f}…{high:.2f}) of "
                    f"imatrix's, {row['seconds']:.0f} s",
                    flush=True,
                )
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(bench: Bench, words: str, effort: Effort = "fast") -> dict[str, Any]:
    """Mean KL, its sums by document, and seconds."""
    recipe = Recipe.load(parse(words).recipe()).with_effort(effort)
    started = time.perf_counter()
    result = goldstick.apply(bench.model, recipe, data=bench.batches if needs_data(recipe.stages) else None)
    seconds = time.perf_counter() - started
    return kl_of(bench, result.model) | {"seconds": round(seconds, 1)}


def kl_of(bench: Bench, quantized: Any) -> dict[str, Any]:
    """Mean KL of a model's next tokens to the float model's, and its sums by document."""
    directory, task = bench.subject.directory, bench.subject.task
    with torch.no_grad():
        models = [LanguageModel.from_directory(model, directory) for model in (bench.model, quantized)]
        apart = divergence(*models, [task], DataSource(bench.subject.data))[task]
    items = apart["details"]["items"]["token_kl"]
    return {
        "kl": round(apart["metrics"]["token_kl"], 6),
        "sums": [round(value, 6) for value in items["values"]],
        "tokens": items["weights"],
    }


def ratio(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """Mean KL of one over that of another: the ends of its interval around it."""
    draws = np.random.default_rng(0).integers(0, len(one["sums"]), (2000, len(one["sums"])))
    first, second = np.asarray(one["sums"]), np.asarray(other["sums"])
    drawn = first[draws].sum(1) / second[draws].sum(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [round(float(value), 4) for value in (low, first.sum() / second.sum(), high)]


if __name__ == "__main__":
    main()
