"""What each effort gives and costs on text it was not calibrated on: ``python -m benchmarks.effort [--only 'w4*']``.

The reference model, calibrated on 128 windows of 256 tokens of its own text, by rounding to nearest, by
``gptq-SCHEME`` with each effort, and by ``gptq-distill-SCHEME``. Two texts: ``text``, held out, of the calibration's
kind; ``wikitext2``, 60 evenly spaced documents of another kind (found through GOLDSTICK_SHARED). For each the mean KL
from the float model's next tokens, the perplexity over the float model's, and what the same documents say of the
perplexity beside that of rounding: the 95 % interval of documents drawn again. One thread; processor seconds of the
compression alone.

Writes ``benchmarks/results/effort.json`` row by row, and the tables of ``docs/effort.md`` and ``docs/distill.md``.
``--report`` measures nothing.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.accuracy_cases import subjects
from benchmarks.cells import with_seed, write_behind
from goldstick.calibration.data.samples import CalibrationData
from goldstick.calibration.memory_budget import peak_memory
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items
from goldstick.evaluation.paired import compare_items
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.save.records import environment
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "effort.json"
DOCUMENT, DISTILLATION = ROOT / "docs" / "effort.md", ROOT / "docs" / "distill.md"
MARK = "<!-- written by benchmarks/effort.py -->\n"
SUBJECT = subjects()["reference"]
SHARED = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared") / "data"
#: Text → where it lies and how many documents of it are looked at.
TEXTS = {"text": (SUBJECT.data, None), "wikitext2": (SHARED, 60)}
SCHEMES = ("w4a16-g128", "w4a16-g32", "w3a16-g128", "w2a16-g64", "w4a8-dynamic-g32", "nvfp4")
ROUNDING, DISTILLED = "rounding", " + distill"
ROWS = (ROUNDING, *get_args(Effort))
#: Rows of docs/distill.md.
FURTHER = ("default + distill", "best + distill")


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="patterns of the rows to measure, such as 'w4*,* default'")
    parser.add_argument("--seed", type=int, default=0, help="of the calibration windows")
    parser.add_argument("--report", action="store_true", help="write the table from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    rows = [(scheme, row) for scheme in SCHEMES for row in (*ROWS, *FURTHER)]
    chosen = [
        pair for pair in rows if any(fnmatch.fnmatchcase(" ".join(pair), one) for one in arguments.only.split(","))
    ]
    if not arguments.report:
        measure(chosen, arguments.seed)
    write_behind(DOCUMENT, MARK, table(ROWS))
    write_behind(DISTILLATION, MARK, table(FURTHER))


def measure(rows: list[tuple[str, str]], seed: int) -> None:
    """Measure rows and keep them."""
    model = AutoModelForCausalLM.from_pretrained(SUBJECT.directory, dtype=torch.float32).eval()
    data = drawn(model, seed)
    documents = documents_of(model)
    for scheme, row in rows:
        effort, further, _ = row.partition(DISTILLED)
        words = f"rtn-{scheme}" if row == ROUNDING else f"gptq{'-distill' if further else ''}-{scheme}"
        recipe = recipe_of(words, "fast" if row == ROUNDING else effort, seed)  # type: ignore[arg-type]
        began, used = time.perf_counter(), time.process_time()
        made = goldstick.apply(model, recipe, data=data.batches() if needs_data(recipe.stages) else None)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        found: dict[str, Any] = {name: compared(model, made.model, texts) for name, texts in documents.items()}
        found |= {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "peak_bytes": peak_memory()}
        found |= {"warnings": list(made.report.warnings), "recipe": made.report.recipe["stages"]}
        found |= {"calibration": data.fingerprint, "versions": environment()}
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results.setdefault(f"{scheme} {row}", {})[str(seed)] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(scheme, row, {name: found[name]["kl"] for name in TEXTS}, f"{used:.0f} s", flush=True)


def recipe_of(words: str, effort: Effort, seed: int) -> Recipe:
    """A recipe of words with an effort, whose random tokens are those of a seed."""
    return with_seed(Recipe.load(words).with_effort(effort), seed)


def drawn(model: Any, seed: int) -> CalibrationData:
    """A draw of the calibration windows."""
    settings = Calibration(dataset=SUBJECT.dataset, samples=128, seq_len=256, seed=seed)
    return calibration_data(settings, SUBJECT.directory, SUBJECT.data)(model)


def documents_of(model: Any) -> dict[str, Any]:
    """The tokens of each document of each text."""
    language_model = LanguageModel.from_directory(model, SUBJECT.directory)
    return {
        name: find_tasks([name])[name].documents(language_model, DataSource(where), limit)[0]  # type: ignore[attr-defined]
        for name, (where, limit) in TEXTS.items()
    }


@torch.no_grad()
def compared(model: Any, changed: Any, documents: Any) -> dict[str, Any]:
    """The sums of every document: −log p of both models, and the KL from the first to the second."""
    sums: dict[str, Any] = {"float_nll": [], "nll": [], "tokens": []}
    divergence = 0.0
    for document in documents:
        ids = torch.tensor([document])
        first, second = (one(input_ids=ids).logits[0, :-1].float().log_softmax(-1) for one in (model, changed))
        for name, scores in (("float_nll", first), ("nll", second)):
            sums[name].append(round(-float(scores.gather(1, ids[0, 1:, None]).double().sum()), 4))
        divergence += float((first.exp() * (first - second)).double().sum())
        sums["tokens"].append(len(document) - 1)
    return {"kl": round(divergence / sum(sums["tokens"]), 6), **sums}


def table(rows: Sequence[str]) -> str:
    """A row for each scheme and effort: seconds, then for each text KL, perplexity over float, and beside rounding."""
    results = json.loads(RESULTS.read_text())
    head = [f"{name}: KL | perplexity over float | beside rounding" for name in TEXTS]
    lines = [f"| scheme | | seconds | {' | '.join(head)} |", "|---" * (3 + 3 * len(TEXTS)) + "|"]
    for scheme in SCHEMES:
        for row in rows:
            seeds = results.get(f"{scheme} {row}", {})
            rounding = results.get(f"{scheme} {ROUNDING}", {})
            if not seeds or not rounding:
                continue
            found, beside = seeds[min(seeds)], rounding[min(rounding)]
            cells = [f"`{scheme}`", row if row == ROUNDING else f"`{row}`", f"{found['processor_seconds']:.0f}"]
            for name in TEXTS:
                cells += cells_of(found[name], beside[name], row != ROUNDING)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cells_of(found: dict[str, Any], rounding: dict[str, Any], compare: bool) -> list[str]:
    """Of one text."""
    said = "–"
    if compare:
        after, before = (
            Items(values=one["nll"], weights=one["tokens"], factor=1.0, exponential=True) for one in (found, rounding)
        )
        interval = compare_items(after, before).relative_interval
        assert interval is not None
        low, high = interval
        verdict = "better" if high < 0 else "worse" if low > 0 else "no difference shown"
        said = f"{100 * low:+.2f} … {100 * high:+.2f} %: {verdict}"
    return [f"{found['kl']:.5f}", f"{over_float(found):.4f}", said]


def over_float(found: dict[str, Any]) -> float:
    """The perplexity over the float model's."""
    return math.exp((sum(found["nll"]) - sum(found["float_nll"])) / sum(found["tokens"]))


if __name__ == "__main__":
    main()
