"""What each method costs in accuracy, on three models, and whether it keeps what is promised of it.

    python -m benchmarks.accuracy [--models reference,stories260k,planted] [--only 'gptq*'] [--report]

Each row loads a model in float32, applies a recipe in memory (:func:`goldstick.apply`) and evaluates the result on the
same texts as the float model. Calibration: 128 windows of 256 tokens of text that evaluation does not use. Ratios are
perplexity over that of the float model; their 95 % intervals are of the same texts drawn again for both (bootstrap).

Writes ``benchmarks/results/accuracy.json`` after each row, and the tables of ``docs/accuracy.md``. ``--only`` measures
the rows whose names match patterns (``'gptq *,awq*'``), in their order, and keeps the others as they are in the file;
two runs for different models may share it. ``--report`` measures nothing.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.accuracy_cases import FLOAT, PLANTED_FACTORS, PLANTED_SEED, PLANTED_SHARE, Row, Subject, rows, subjects
from benchmarks.accuracy_tables import format_tables, tables
from benchmarks.accuracy_verdicts import Results, verdicts
from goldstick.algorithms import ALGORITHMS
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.evaluate import evaluate
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.save.records import environment
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from tools.planted_outliers import plant

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "accuracy.json"
DOCUMENT = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- written by benchmarks/accuracy.py -->", "<!-- end -->"
FORMATS_BEGIN, FORMATS_END = "<!-- written by benchmarks/number_formats.py -->", "<!-- end of number formats -->"
SAMPLES, SEQ_LEN = 128, 256


def main() -> None:
    """Measure, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(subjects()))
    parser.add_argument("--only", default="*", help="patterns of the rows to measure, such as 'gptq *,awq*'")
    parser.add_argument("--report", action="store_true", help="write tables and verdicts from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    for name in [] if arguments.report else arguments.models.split(","):
        measure(subjects()[name], arguments.only.split(","))
    results = Results.read(RESULTS)
    text = "\n\n".join([tables(results), "\n".join(f"- {line}" for line in verdicts(results))])
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def write_formats(results: Results, found: Iterable[Row]) -> None:
    """Write the tables of number formats, which ``benchmarks/number_formats.py`` has measured."""
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(FORMATS_BEGIN)
    text = format_tables(results, found)
    DOCUMENT.write_text(
        f"{head}{FORMATS_BEGIN}\n\n{text}\n\n{FORMATS_END}{rest.split(FORMATS_END)[1]}", encoding="utf-8"
    )


def measure(subject: Subject, patterns: Sequence[str]) -> None:
    """Measure rows of one model, and write the results after each."""
    if not subject.directory.is_dir():
        print(f"{subject.name}: skipped, there is no {subject.directory}; GOLDSTICK_SHARED names the folder above")
        return
    bench = Bench.of(subject)
    matching = [row for pattern in patterns for row in rows(subject) if fnmatch.fnmatchcase(row.name, pattern)]
    for row in (FLOAT, *matching):
        missing = [stage for part in row.stages for stage in part if stage not in ALGORITHMS]
        if missing:
            print(f"{subject.name:12s} {row.name:28s} not measured: there is no stage {missing[0]}", flush=True)
            continue
        found = keep(bench, row, RESULTS)
        print(f"{subject.name:12s} {row.name:28s} {found['perplexity']:10.4f} {found['seconds']:6.1f} s", flush=True)


def keep(bench: Bench, row: Row, path: Path) -> dict[str, Any]:
    """Measure a row, and put it into a file of results."""
    found = bench.measure(row)
    results = Results.read(path)  # again, for another run may have added to it
    results.put(bench.subject, row, found, environment())
    results.write(path)
    return found


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded model and its calibration data."""

    subject: Subject
    model: Any
    batches: Sequence[Mapping[str, Tensor]]

    @classmethod
    def of(cls, subject: Subject) -> Bench:
        """Load a model, plant what is to be planted, read its calibration data."""
        model = AutoModelForCausalLM.from_pretrained(subject.directory, dtype=torch.float32).eval()
        if subject.planted:
            plant(model, PLANTED_SHARE, PLANTED_FACTORS, PLANTED_SEED)
        settings = Calibration(dataset=subject.dataset, samples=SAMPLES, seq_len=SEQ_LEN)
        data = calibration_data(settings, subject.directory, subject.data)(model)
        return cls(subject=subject, model=model, batches=data.batches())

    def measure(self, row: Row) -> dict[str, Any]:
        """Perplexity, the NLL of each text, the KL to the float model, seconds to quantize, and bits per weight."""
        start = time.perf_counter()
        model, bits = self.model, 32.0
        if row.stages:
            recipe = Recipe.load({"stages": row.stages})
            batches = self.batches if needs_data(recipe.stages) else None
            result = goldstick.apply(self.model, recipe, data=batches)
            model, bits = result.model, result.report.size.bits_per_weight or bits  # none: no weight was quantized
        seconds = time.perf_counter() - start
        directory, task, data = self.subject.directory, self.subject.task, self.subject.data
        with torch.no_grad():
            language_model = LanguageModel.from_directory(model, directory)
            evaluation = evaluate(language_model, [task], data, None)
            apart = divergence(
                LanguageModel.from_directory(self.model, directory), language_model, [task], DataSource(data)
            )
        found = evaluation.results[task]
        items = found.details["items"]["perplexity"]
        return {
            "perplexity": found.metrics["perplexity"],
            "kl": round(apart[task]["metrics"]["token_kl"], 6),
            "kl_interval": [round(end, 6) for end in apart[task]["details"]["interval_95"]["token_kl"]],
            "kl_items": [round(value, 5) for value in apart[task]["details"]["items"]["token_kl"]["values"]],
            "bits_per_weight": round(bits, 3),
            "seconds": round(seconds, 1),
            "protocol": found.protocol,
            "nll": [round(value, 5) for value in items["values"]],
            "tokens": items["weights"],
        }


if __name__ == "__main__":
    main()
