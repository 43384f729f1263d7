"""Accuracy at equal size: goldstick's recipes and other tools, one evaluator, intervals, time and memory.

    python -m benchmarks.frontier [--auto-round PYTHON] [--llm-compressor PYTHON] [--gptqmodel PYTHON] [--hqq PYTHON]
        [--model reference] [--only 'w4*'] [--seeds 0] [--report]

For each scheme and calibration seed all tools get the same data and the same layers
(:mod:`benchmarks.frontier_models`). goldstick runs through its Python interface in memory: ``gptq`` with each effort,
and parts of what efforts turn on. Other tools run by the Python that has them installed
(:mod:`benchmarks.frontier_peers`). Each result is evaluated by plain transformers' logits in float32 on held-out data
of the same kind: mean KL from what the float model predicts, with a 95 % interval of items drawn again, and the
difference from goldstick's, of the same items. One thread each; processor seconds, since a machine has other work.

Writes ``benchmarks/results/frontier.json`` after each row, and the table of ``docs/history/frontier.md``.
``--report`` measures nothing.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import goldstick
from benchmarks.cells import with_seed
from benchmarks.frontier_models import Batch, FrontierModel, frontier_models, load
from benchmarks.frontier_peers import PEERS, TOOLS, run
from benchmarks.k_quants import ratio
from goldstick.calibration.memory_budget import peak_memory
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save.records import environment
from goldstick.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "frontier.json"
DOCUMENT = ROOT / "docs" / "history" / "frontier.md"
BEGIN, END = "<!-- written by benchmarks/frontier.py -->", "<!-- end -->"
_TWO_SIDED = {"objective": "loss", "two_sided": True}
#: Stages, and the effort.
EFFORTS: dict[str, tuple[list[dict[str, dict[str, Any]]], str]] = {
    "fast": ([{"gptq": {}}], "fast"),
    "default": ([{"gptq": {}}], "default"),
    "best": ([{"gptq": {}}], "best"),
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
    parser.add_argument("--model", default="reference", choices=list(frontier_models()))
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of the rows to measure, such as 'w4*'")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--missing", action="store_true", help="measure rows that are not in the results alone")
    parser.add_argument("--report", action="store_true", help="write the tables from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    subject = frontier_models()[arguments.model]
    bench = Bench(arguments.model, subject, {tool: getattr(arguments, tool) for tool in TOOLS})
    for seed in [] if arguments.report else map(int, arguments.seeds.split(",")):
        for scheme in subject.schemes:
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
        name: What the results call it.
        subject: The model and its data.
        pythons: Tool → a Python that has it; ``None`` where it is not to be measured.
    """

    def __init__(self, name: str, subject: FrontierModel, pythons: dict[str, str | None]) -> None:
        self._name, self._subject, self._pythons = name, subject, pythons

    def measure(self, scheme: str, method: str, seed: int) -> None:
        """One row, kept; none where its tool is not at hand or has no such scheme."""
        peer, subject = PEERS.get(method), self._subject
        python = self._pythons[peer.tool] if peer else None
        if peer and (python is None or ("fp4" in scheme and not peer.floats)):
            return
        model = load(subject)
        data = subject.drawn(model, seed)
        if python is None:
            changed, found = with_goldstick(model, data.batches, scheme, method, seed, subject.exclude)
        else:
            try:
                weights, found = run(method, python, subject, data, layers(model, subject.exclude), scheme)
            except RuntimeError as error:
                print(f"{self._name} {scheme} {method} seed {seed}: {error}", flush=True)
                self._save(f"{scheme} {method}", seed, {"failed": str(error)})
                return
            changed = copy.deepcopy(model)
            changed.load_state_dict(weights, strict=False)
        found = {**kl(subject, model, changed), **found, "calibration": data.fingerprint, "versions": environment()}
        self._save(f"{scheme} {method}", seed, found)
        took = f"{found['processor_seconds']:.0f} s"
        print(f"{self._name} {scheme} {method} seed {seed}: KL {found['kl']:.5f}, {took}", flush=True)

    def has(self, row: str, seed: int) -> bool:
        """Whether a row is measured, item by item, or its tool is known to fail."""
        return not {"sums", "failed"}.isdisjoint(read(self._name).get(row, {}).get(str(seed), {}))

    def _save(self, row: str, seed: int, found: dict[str, Any]) -> None:
        """Put a row into the file, in the place of an older one."""
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results.setdefault(self._name, {}).setdefault(row, {})[str(seed)] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def kl(subject: FrontierModel, model: Any, changed: Any) -> dict[str, Any]:
    """The mean KL over the held-out data, its interval, and the sums of every item."""
    items = subject.divergence(model, changed)
    low, high = items.interval() or (float("nan"), float("nan"))
    return {
        "kl": round(items.metric(), 6),
        "kl_interval": [round(low, 6), round(high, 6)],
        "sums": [round(value, 6) for value in items.values],
    }


def layers(model: Any, exclude: Sequence[str]) -> list[str]:
    """Names of the layers that are quantized: goldstick's choice, for all tools."""
    rounded = goldstick.apply(model, Recipe.load({"stages": [recipe_stage("rtn", "w8a16", exclude)]}))
    return [record.name.removesuffix(".weight") for record in rounded.report.layers if record.scheme]


def recipe_stage(algorithm: str, scheme: str, exclude: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A stage for all layers but some."""
    targets = {"targets": {"exclude": list(exclude)}} if exclude else {}
    return {algorithm: {"scheme": scheme, **targets}}


def with_goldstick(
    model: Any, batches: Sequence[Batch], scheme: str, method: str, seed: int, exclude: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """The model that one recipe makes of another, in memory, and what it took."""
    given, effort = EFFORTS[method] if method in EFFORTS else (PARTS[method], "fast")
    stages = [{name: dict(options) for name, options in stage.items()} for stage in given]
    stages[0]["gptq"] |= recipe_stage("gptq", scheme, exclude)["gptq"]
    recipe = with_seed(Recipe.load({"stages": stages}).with_effort(effort), seed)  # type: ignore[arg-type]
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
    for model, subject in frontier_models().items():
        if read(model):
            parts += [f"## {model}", table(model, subject.schemes, [*EFFORTS, *PEERS])]
            parts += differences(model, subject.schemes)
            others = table(model, subject.schemes, list(PARTS))
            parts += ["Parts of an effort:", others] if others.count("\n") > 1 else []
    return "\n\n".join(parts)


def table(model: str, schemes: Sequence[str], methods: list[str]) -> str:
    """Methods down, schemes across: mean KL in thousandths of a nat with its interval, of the first seed; seconds."""
    results = read(model)
    lines = ["| | " + " | ".join(f"`{scheme}`" for scheme in schemes) + " |", "|---" * (len(schemes) + 1) + "|"]
    for method in methods:
        cells = []
        for scheme in schemes:
            seeds = results.get(f"{scheme} {method}", {})
            if not seeds:
                cells.append("–")
                continue
            row = seeds[min(seeds)]
            if "failed" in row:
                cells.append("fails")
                continue
            low, high = row["kl_interval"]
            others = "".join(f", {1000 * seeds[seed]['kl']:.2f}" for seed in sorted(seeds)[1:])
            seconds = f"{row['processor_seconds']:.0f} s"
            cells.append(f"{1000 * row['kl']:.2f} ({1000 * low:.2f}…{1000 * high:.2f}){others}; {seconds}")
        if set(cells) != {"–"}:
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(model: str, schemes: Sequence[str]) -> list[str]:
    """For each scheme and seed: goldstick's KL over that of the best peer, of the same documents."""
    results, lines = read(model), []
    for scheme in schemes:
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
