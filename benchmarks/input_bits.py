"""What it costs to round the inputs of layers to 8 bits as they run, in the place of 16.

    python -m benchmarks.input_bits [--models reference,planted]

Each row loads a model in float32, rounds it in memory, and compares its next tokens with the float model's, the inputs
of its layers rounded to 16 bits and to 8 (``goldstick.set_input_bits``), over the held-out text of
:mod:`benchmarks.accuracy`: the mean KL divergence with a 95 % interval, and perplexity as a ratio to the float model's.
``planted`` is the reference model with outliers at the inputs of down and output projections (``python -m
tools.planted_outliers --behind linear``). Beside it stand inputs rounded by a scheme, with one scale for each token.

Writes ``benchmarks/results/input-bits.json``; ``python -m tools.docs`` makes the table of docs/kernels.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import goldstick
from benchmarks.accuracy import Bench
from benchmarks.accuracy_cases import PLANTED_FACTORS, PLANTED_SEED, PLANTED_SHARE, subjects
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.evaluate import evaluate
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save.records import environment
from goldstick.kernels.input_bits import INPUT_BITS
from tools.planted_outliers import plant

RESULTS = Path(__file__).resolve().parent / "results" / "input-bits.json"
#: Scheme → the one of the same weights whose inputs have 8 bits by token.
SCHEMES = {"q4_k": "", "q6_k": "", "w4a16-g32": "w4a8-dynamic-g32", "w8a16": "w8a8-dynamic"}
TOKEN = "by token"


def measured(bench: Bench, model: Any) -> dict[str, Any]:
    """KL and perplexity of a model as it runs now."""
    subject = bench.subject
    with torch.no_grad():
        one = LanguageModel.from_directory(model, subject.directory)
        found = evaluate(one, [subject.task], subject.data, None).results[subject.task]
        whole = LanguageModel.from_directory(bench.model, subject.directory)
        apart = divergence(whole, one, [subject.task], DataSource(subject.data))[subject.task]
    return {
        "perplexity": found.metrics["perplexity"],
        "kl": round(apart["metrics"]["token_kl"], 6),
        "kl_interval": [round(end, 6) for end in apart["details"]["interval_95"]["token_kl"]],
    }


def rows_of(bench: Bench) -> dict[str, Any]:
    """Scheme → what its inputs are rounded to → its figures."""
    found: dict[str, Any] = {}
    for scheme, by_token in SCHEMES.items():
        stage = {"scheme": scheme, "group_size_mismatch": "smaller"}
        try:
            model = goldstick.apply(bench.model, {"stages": [{"rtn": stage}]}).model
        except goldstick.GoldstickError as error:  # superblocks of 256 do not divide every width
            print(f"{scheme}: {error}")
            continue
        row = {}
        for bits in INPUT_BITS:
            goldstick.set_input_bits(bits)
            row[str(bits)] = measured(bench, model)
        goldstick.set_input_bits(INPUT_BITS[0])
        if by_token:
            made = goldstick.apply(bench.model, {"stages": [{"rtn": stage | {"scheme": by_token}}]})
            row[TOKEN] = measured(bench, made.model)
        found[scheme] = row
        print(bench.subject.name, scheme, json.dumps(row), flush=True)
    return found


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="reference,planted")
    arguments = parser.parse_args()
    quiet_libraries()
    known = subjects() | {"planted": replace(subjects()["reference"], name="planted")}
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in arguments.models.split(","):
        bench = Bench.of(known[name])
        if name == "planted":
            plant(bench.model, PLANTED_SHARE, PLANTED_FACTORS, PLANTED_SEED, behind="linear")
        results[name] = {"rows": rows_of(bench), "environment": environment()}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
