"""Accuracy at equal size: goldstick's recipes and other tools, one evaluator, intervals, time and memory.

    python -m benchmarks.frontier [--auto-round PYTHON] [--llm-compressor PYTHON] [--gptqmodel PYTHON] [--hqq PYTHON]
        [--model reference] [--only 'w4*'] [--seeds 0] [--report]

For each scheme and calibration seed all tools get the same windows of a model's own text (128 of 256 tokens).
goldstick runs through its Python interface in memory: ``gptq`` with each effort, and parts of what efforts turn
on. Other tools run by the Python that has them installed (:mod:`benchmarks.frontier_peers`). Each result is evaluated
by plain transformers' logits in float32 on held-out text of the same kind: mean KL from the float model's next tokens,
with a 95 % interval of documents drawn again, and the difference from goldstick's, of the same documents. One thread
each; processor seconds, since a machine has other work.

Writes ``benchmarks/results/frontier.json`` after each row, and the table of ``docs/history/frontier.md``.
``--report`` measures nothing.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.accuracy_cases import Subject
from benchmarks.frontier_peers import PEERS, TOOLS, run
from benchmarks.k_quants import ratio
from benchmarks.searched_models import searched_subjects
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
GROUPS = ("w4a16-g128", "w3a16-g128", "w2a16-g64", "nvfp4a16", "mxfp4a16")
#: Model → its schemes: layers of stories260K have 172 inputs, which no group divides.
MODELS = {
    "reference": GROUPS,
    "widened": GROUPS,
    "stories260k": ("w4a16-channel", "w3a16-channel", "w2a16-channel"),
}
_TWO_SIDED = {"objective": "loss", "two_sided": True}
#: Stages, and the effort.
EFFORTS: dict[str, tuple[list[dict[str, dict[str, Any]]], str]] = {
    "fast": ([{"gptq": {}}], "fast"),
    "default": ([{"gptq": {}}], "default"),
    "best": ([{"gptq": {}}], "best"),
    "best, two-sided": ([{"gptq": _TWO_SIDED}], "best"),
    "best, distill": ([{"gptq": {}}, {"distill": {}}], "best"),
}
#: What efforts turn on, one after the other, and what they do not.
PARTS: dict[str, list[dict[str, dict[str, Any]]]] = {
    "gptq": [{"gptq": {}}],
    "gptaq": [{"gptq": {"gptaq": True}}],
    "gptaq, cycles": [{"gptq": {"gptaq": True, "cycles": 2}}],
    "gptaq, cycles, output": [{"gptq": {"gptaq": True, "cycles": 2, "objective": "output"}}],
    "gptaq, cycles, loss": [{"gptq": {"gptaq": True, "cycles": 2, "objective": "loss"}}],
    "gptaq, cycles, two-sided": [{"gptq": {"gptaq": True, "cycles": 2, **_TWO_SIDED}}],
    "gptaq, cycles, learn": [{"gptq": {"gptaq": True, "cycles": 2}}, {"learn": {"steps": 200}}],
}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for tool in TOOLS:
        parser.add_argument(f"--{tool}", dest=tool, metavar="PYTHON", help="left out, it is not measured")
    parser.add_argument("--model", default="reference", choices=list(MODELS))
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of the rows to measure, such as 'w4*'")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--missing", action="store_true", help="measure rows that are not in the results alone")
    parser.add_argument("--report", action="store_true", help="write the tables from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    bench = Bench(searched_subjects()[arguments.model], {tool: getattr(arguments, tool) for tool in TOOLS})
    for seed in [] if arguments.report else map(int, arguments.seeds.split(",")):
        for scheme in MODELS[arguments.model]:
            for method in (*EFFORTS, *PARTS, *PEERS):
                wanted = any(fnmatch.fnmatchcase(f"{scheme} {method}", pattern) for pattern in arguments.only)
                if wanted and not (arguments.missing and bench.has(f"{scheme} {method}", seed)):
                    bench.measure(scheme, method, seed)
    text = report()
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


class Bench:
    """The rows of one model.

    Args:
        subject: The model and its data.
        pythons: Tool → a Python that has it; ``None`` where it is not to be measured.
    """

    def __init__(self, subject: Subject, pythons: dict[str, str | None]) -> None:
        self._subject, self._pythons = subject, pythons

    def measure(self, scheme: str, method: str, seed: int) -> None:
        """One row, kept; none where its tool is not at hand or has no such scheme."""
        peer, subject = PEERS.get(method), self._subject
        python = self._pythons[peer.tool] if peer else None
        if peer and (python is None or ("fp4" in scheme and not peer.floats)):
            return
        model = AutoModelForCausalLM.from_pretrained(subject.directory, dtype=torch.float32).eval()
        settings = Calibration(dataset=subject.dataset, samples=128, seq_len=256, seed=seed)
        data = calibration_data(settings, subject.directory, subject.data)(model)
        if python is None:
            changed, found = with_goldstick(model, data.batches(), scheme, method)
        else:
            try:
                weights, found = run(method, python, subject.directory, data.ids, scheme)
            except RuntimeError as error:
                print(f"{subject.name} {scheme} {method} seed {seed}: {error}", flush=True)
                return
            changed = copy.deepcopy(model)
            changed.load_state_dict(weights, strict=False)
        found = {**self._kl(model, changed), **found, "calibration": data.fingerprint, "versions": environment()}
        self._save(f"{scheme} {method}", seed, found)
        took = f"{found['processor_seconds']:.0f} s"
        print(f"{subject.name} {scheme} {method} seed {seed}: KL {found['kl']:.5f}, {took}", flush=True)

    def has(self, row: str, seed: int) -> bool:
        """Whether a row is measured, document by document."""
        return "sums" in read(self._subject.name).get(row, {}).get(str(seed), {})

    def _kl(self, model: Any, changed: Any) -> dict[str, Any]:
        """The mean KL over the held-out text, its interval, and the sums of every document."""
        subject = self._subject
        with torch.no_grad():
            first, second = (LanguageModel.from_directory(one, subject.directory) for one in (model, changed))
            found = divergence(first, second, [subject.task], DataSource(subject.data))[subject.task]
        interval, items = found["details"]["interval_95"]["token_kl"], found["details"]["items"]["token_kl"]
        return {
            "kl": round(found["metrics"]["token_kl"], 6),
            "kl_interval": [round(end, 6) for end in interval],
            "sums": [round(value, 6) for value in items["values"]],
        }

    def _save(self, row: str, seed: int, found: dict[str, Any]) -> None:
        """Put a row into the file, in the place of an older one."""
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results.setdefault(self._subject.name, {}).setdefault(row, {})[str(seed)] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def with_goldstick(model: Any, batches: Any, scheme: str, method: str) -> tuple[Any, dict[str, Any]]:
    """The model that one recipe makes of another, in memory, and what it took."""
    given, effort = EFFORTS[method] if method in EFFORTS else (PARTS[method], "fast")
    stages = [{name: dict(options) for name, options in stage.items()} for stage in given]
    stages[0]["gptq"]["scheme"] = scheme
    recipe = Recipe.load({"stages": stages}).with_effort(effort)  # type: ignore[arg-type]
    began, used = time.perf_counter(), time.process_time()
    result = goldstick.apply(model, recipe, data=batches)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    notes = [record.notes for record in result.report.layers]
    kept = len({str(note["block_error_before"]) for note in notes if "start was kept" in str(note.get("learning", ""))})
    measured = {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "peak_bytes": peak_memory()}
    return result.model, {**measured, "blocks_kept_at_their_start": kept}


def read(model: str) -> dict[str, Any]:
    """All rows of a model, by seed."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()).get(model, {}) if RESULTS.is_file() else {}
    return found


def report() -> str:
    """The tables of all models."""
    parts = []
    for model in MODELS:
        if read(model):
            parts += [f"## {model}", table(model, [*EFFORTS, *PEERS]), *differences(model)]
            parts += ["Parts of an effort:", table(model, list(PARTS))]
    return "\n\n".join(parts)


def table(model: str, methods: list[str]) -> str:
    """Methods down, schemes across: mean KL in thousandths of a nat with its interval, of the first seed; seconds."""
    results, schemes = read(model), MODELS[model]
    lines = ["| | " + " | ".join(f"`{scheme}`" for scheme in schemes) + " |", "|---" * (len(schemes) + 1) + "|"]
    for method in methods:
        cells = []
        for scheme in schemes:
            seeds = results.get(f"{scheme} {method}", {})
            if not seeds:
                cells.append("–")
                continue
            row = seeds[min(seeds)]
            low, high = row["kl_interval"]
            others = "".join(f", {1000 * seeds[seed]['kl']:.2f}" for seed in sorted(seeds)[1:])
            seconds = f"{row['processor_seconds']:.0f} s"
            cells.append(f"{1000 * row['kl']:.2f} ({1000 * low:.2f}…{1000 * high:.2f}){others}; {seconds}")
        if set(cells) != {"–"}:
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(model: str) -> list[str]:
    """For each scheme and seed: goldstick's KL over that of the best peer, of the same documents."""
    results, lines = read(model), []
    for scheme in MODELS[model]:
        peers = [name for name in PEERS if "sums" in results.get(f"{scheme} {name}", {}).get("0", {})]
        best = min(peers, key=lambda name: results[f"{scheme} {name}"]["0"]["kl"], default=None)
        for method in EFFORTS:
            ours, theirs = results.get(f"{scheme} {method}", {}), results.get(f"{scheme} {best}", {})
            seeds = [seed for seed in sorted(ours) if "sums" in ours[seed] and "sums" in theirs.get(seed, {})]
            if method != "fast" and seeds:
                shown = (ratio(ours[seed], theirs[seed]) for seed in seeds)
                told = ", ".join(f"{middle:.2f} ({low:.2f}…{high:.2f})" for low, middle, high in shown)
                lines.append(f"- `{scheme}`, `{method}` over {best}: {told}.")
    return ["\n".join(lines)] if lines else []


if __name__ == "__main__":
    main()
