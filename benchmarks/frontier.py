"""Accuracy at equal size: goldstick's calibrated recipes and auto-round, one evaluator, intervals, time and memory.

    python -m benchmarks.frontier --auto-round PYTHON [--only 'w4*'] [--seeds 0] [--report]

For each scheme and calibration seed both tools get the same windows of the reference model's own text (128 of 256
tokens). goldstick runs through its Python interface in memory, auto-round by the Python that has it installed
(``pip install auto-round``, in an environment of its own). Each result is evaluated by plain transformers' logits in
float32 on the model's held-out text: mean KL from the float model's next tokens, with a 95 % interval of documents
drawn again. One thread each, for two tools that wait for each other on a busy machine say nothing of either.

Writes ``benchmarks/results/frontier.json`` after each row, and the table of ``docs/history/frontier.md``.
``--report`` measures nothing.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.accuracy_cases import subjects
from goldstick.calibration.memory_budget import peak_memory
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.save.records import environment
from goldstick.recipes.recipe import Calibration, Recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "frontier.json"
DOCUMENT = ROOT / "docs" / "history" / "frontier.md"
BEGIN, END = "<!-- written by benchmarks/frontier.py -->", "<!-- end -->"
SUBJECT = subjects()["reference"]
#: Scheme → bits, group and data type as auto-round names them.
SCHEMES = {
    "w4a16-g128": (4, 128, "int"),
    "w3a16-g128": (3, 128, "int"),
    "w2a16-g64": (2, 64, "int"),
    "nvfp4a16": (4, 16, "nv_fp"),
    "mxfp4a16": (4, 32, "mx_fp"),
}
METHODS: dict[str, list[dict[str, dict[str, Any]]]] = {
    "gptq": [{"gptq": {}}],
    "gptaq": [{"gptq": {"gptaq": True}}],
    "gptaq, cycles": [{"gptq": {"gptaq": True, "cycles": 2}}],
    "gptaq, cycles, output": [{"gptq": {"gptaq": True, "cycles": 2, "objective": "output"}}],
    "gptaq, cycles, loss": [{"gptq": {"gptaq": True, "cycles": 2, "objective": "loss"}}],
    "gptaq, cycles, learn": [{"gptq": {"gptaq": True, "cycles": 2}}, {"learn": {"steps": 200}}],
}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auto-round", help="the Python that has auto-round; left out, it is not measured")
    parser.add_argument("--only", default="*", help="patterns of the rows to measure, such as 'w4*,*learn'")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--report", action="store_true", help="write the table from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    patterns = arguments.only.split(",")
    for seed in [] if arguments.report else map(int, arguments.seeds.split(",")):
        model = AutoModelForCausalLM.from_pretrained(SUBJECT.directory, dtype=torch.float32).eval()
        settings = Calibration(dataset=SUBJECT.dataset, samples=128, seq_len=256, seed=seed)
        data = calibration_data(settings, SUBJECT.directory, SUBJECT.data)(model)
        for scheme in SCHEMES:
            for method in (*METHODS, *(["auto-round"] if arguments.auto_round else [])):
                if not any(fnmatch.fnmatchcase(f"{scheme} {method}", pattern) for pattern in patterns):
                    continue
                if method == "auto-round":
                    found = with_auto_round(arguments.auto_round, model, data.ids, scheme)
                else:
                    found = with_goldstick(model, data.batches(), scheme, method)
                row = {**found, "calibration": data.fingerprint, "versions": environment()}
                save(f"{scheme} {method}", seed, row)
                print(f"{scheme} {method} seed {seed}: KL {row['kl']:.5f}, {row['seconds']:.0f} s", flush=True)
    text = table()
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def with_goldstick(model: Any, batches: Any, scheme: str, method: str) -> dict[str, Any]:
    """One recipe, in memory."""
    stages = [{name: dict(options) for name, options in stage.items()} for stage in METHODS[method]]
    stages[0]["gptq"]["scheme"] = scheme
    began, used = time.perf_counter(), time.process_time()
    result = goldstick.apply(model, Recipe.load({"stages": stages}), data=batches)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    notes = [record.notes for record in result.report.layers]
    kept = len({str(note["block_error_before"]) for note in notes if "start was kept" in str(note.get("learning", ""))})
    measured = {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "peak_bytes": peak_memory()}
    return {**kl(model, result.model), **measured, "blocks_kept_at_their_start": kept}


def with_auto_round(python: str, model: Any, ids: Tensor, scheme: str) -> dict[str, Any]:
    """auto-round's defaults, in a process of its own; evaluated from the weights that it stores."""
    bits, group, kind = SCHEMES[scheme]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file({"calibration": ids.contiguous()}, folder / "windows.safetensors")
        spec = {
            "model": str(SUBJECT.directory),
            "windows": str(folder / "windows.safetensors"),
            "output": str(folder / "out"),
            "times": str(folder / "times.json"),
            "bits": bits,
            "group_size": group,
            "data_type": kind,
            "by_row": [],
            "options": {"enable_torch_compile": False},
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        script = ROOT / "benchmarks" / "peers" / "run_auto_round.py"
        job = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--measure", python, str(script)]
        job.append(str(folder / "spec.json"))
        done = subprocess.run(job, env={**os.environ, **threads}, capture_output=True, text=True, check=True)
        times = json.loads((folder / "times.json").read_text())
        (file,) = (folder / "out").rglob("model.safetensors")
        changed = copy.deepcopy(model)
        changed.load_state_dict({name: value.float() for name, value in load_file(file).items()}, strict=False)
        return {
            **kl(model, changed),
            "seconds": round(times["quantize_and_write"], 1),
            "processor_seconds": round(times["processor_seconds"], 1),
            "peak_bytes": json.loads(done.stdout)["peak_process_bytes"],
            "peer": times["versions"],
        }


def kl(model: Any, changed: Any) -> dict[str, Any]:
    """The mean KL over the held-out text, and its interval."""
    with torch.no_grad():
        first, second = (LanguageModel.from_directory(one, SUBJECT.directory) for one in (model, changed))
        found = divergence(first, second, [SUBJECT.task], DataSource(SUBJECT.data))[SUBJECT.task]
    interval = found["details"]["interval_95"]["token_kl"]
    return {"kl": round(found["metrics"]["token_kl"], 6), "kl_interval": [round(end, 6) for end in interval]}


def save(row: str, seed: int, found: dict[str, Any]) -> None:
    """Put a row into the file, in the place of an older one."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results.setdefault(row, {})[str(seed)] = found
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def table() -> str:
    """Schemes down, methods across: mean KL in thousandths of a nat with its interval, of the first seed; seconds."""
    results = json.loads(RESULTS.read_text())
    methods = [*METHODS, "auto-round"]
    lines = ["| scheme | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for scheme in SCHEMES:
        cells = []
        for method in methods:
            seeds = results.get(f"{scheme} {method}", {})
            if not seeds:
                cells.append("–")
                continue
            row = seeds[min(seeds)]
            low, high = row["kl_interval"]
            others = "".join(f", {1000 * seeds[seed]['kl']:.2f}" for seed in sorted(seeds)[1:])
            cells.append(f"{1000 * row['kl']:.2f} ({1000 * low:.2f}…{1000 * high:.2f}){others}; {row['seconds']:.0f} s")
        lines.append(f"| `{scheme}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
