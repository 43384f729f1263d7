"""Whether boolq and wikitext2/lm-eval give what lm-evaluation-harness gives, example by example.

    make lm-eval

Both run the same float32 models on the whole of the local data: the reference model and stories260K (found through
GOLDSTICK_SHARED), BoolQ's validation set and WikiText-2's test set. lm_eval has an environment of its own, which make
builds under build/lm-eval; LM_EVAL_PYTHON names another interpreter that has it. Results are written to
benchmarks/results/lm_eval.json, model by model.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from goldstick.evaluation import TASKS, DataSource, LanguageModel
from goldstick.evaluation.metrics import exponential
from goldstick.evaluation.tasks.boolq import BoolQ
from goldstick.evaluation.tasks.pages import PagePerplexity
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "lm_eval.json"
CLOSE = 1e-4


def main() -> int:
    """Compare, print, write; 1 where something differs."""
    arguments = _arguments()
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared")
    data_dir = shared / "data"
    models = {"reference": reference_directory(), "stories260k": data_dir / "stories260k"}
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in arguments.models or models:
        found[name] = {**found.get(name, {}), **_compare(models[name], data_dir, arguments)}
        if arguments.limit is None:
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(name, json.dumps(found[name], indent=1))
    return 0 if all(row["equal"] for one in found.values() for row in one.values()) else 1


def _compare(directory: Path, data_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    data = DataSource(data_dir)
    model = LanguageModel.from_directory(load(directory, dtype=torch.float32), directory)
    rows: dict[str, list[dict[str, Any]]] = {}
    if "boolq" in arguments.tasks:
        keep = ("passage", "question", "label")
        rows["boolq"] = [
            {key: int(row[key]) if key == "label" else row[key] for key in keep} for row in data.rows(BoolQ().dataset)
        ][: arguments.limit]
    if "wikitext" in arguments.tasks:
        rows["wikitext"] = [{"page": page} for page in PagePerplexity().load(data)][: arguments.limit]
    ours, seconds = {}, {}
    for task, name in (("boolq", "boolq"), ("wikitext", "wikitext2/lm-eval")):
        if task in rows:
            start = time.perf_counter()
            ours[task] = TASKS[name].run(model, data, arguments.limit, None)
            seconds[task] = time.perf_counter() - start
            print(f"{task}: {seconds[task]:.1f} s here, {dict(ours[task].metrics)}", flush=True)
    theirs = _run_lm_eval(directory, rows, arguments)
    answer: dict[str, Any] = {}
    versions = {"lm_eval": theirs["lm_eval"], "torch": torch.__version__, "threads": torch.get_num_threads()}
    if "boolq" in rows:
        chosen = [scores.index(max(scores)) for scores in theirs["samples"]["boolq"]]
        right = [int(one == row["label"]) for one, row in zip(chosen, rows["boolq"], strict=True)]
        mine = ours["boolq"].details["items"]["accuracy"]["values"]
        differing = [place for place, pair in enumerate(zip(right, mine, strict=True)) if pair[0] != pair[1]]
        answer["boolq"] = {
            "examples": len(right),
            "differing_choices": len(differing),
            "accuracy": ours["boolq"].metrics["accuracy"],
            "lm_eval_accuracy": 100.0 * sum(right) / len(right),
            "seconds": round(seconds["boolq"], 1),
            "equal": not differing,
            **versions,
        }
    if "wikitext" in rows:
        likelihoods = theirs["samples"]["wikitext"]
        mine = ours["wikitext"].details["items"]["word_perplexity"]
        theirs_perplexity = exponential(-math.fsum(likelihoods) / sum(mine["weights"]))
        value = ours["wikitext"].metrics["word_perplexity"]
        pages = zip(mine["values"], likelihoods, strict=True)
        answer["wikitext"] = {
            "pages": len(likelihoods),
            "word_perplexity": value,
            "lm_eval_word_perplexity": theirs_perplexity,
            "relative_difference": abs(value - theirs_perplexity) / theirs_perplexity,
            "largest_relative_difference_of_a_page": max(abs(one + other) / one for one, other in pages),
            "seconds": round(seconds["wikitext"], 1),
            "equal": abs(value - theirs_perplexity) <= CLOSE * theirs_perplexity,
            **versions,
        }
    return answer


def _run_lm_eval(directory: Path, rows: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for task, examples in rows.items():
            path = Path(folder, f"{task}.jsonl.gz")
            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in examples)
            files[task] = str(path)
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({"model": str(directory), "files": files, "batch_size": arguments.batch_size}))
        worker = str(Path(__file__).with_name("lm_eval_worker.py"))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder}
        subprocess.run([arguments.python, "-P", worker, str(request), str(answer)], check=True, env=environment)
        return json.loads(answer.read_text())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=os.environ.get("LM_EVAL_PYTHON") or sys.executable)
    parser.add_argument("--models", nargs="*", choices=["reference", "stories260k"])
    parser.add_argument("--tasks", nargs="*", default=["boolq", "wikitext"], choices=["boolq", "wikitext"])
    parser.add_argument("--limit", type=int, help="examples of each task; nothing is written then")
    parser.add_argument("--batch-size", type=int, default=16)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
