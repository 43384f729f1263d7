"""goldstick's search beside auto-round's AutoScheme, choosing among the same candidates, in the same bytes.

    python -m benchmarks.auto_scheme --python build/peers/auto-round/bin/python [--models reference] [--report]

AutoScheme chooses for the linear layers of the blocks, from its own scores on the same text, at four averages of bits.
goldstick's search is then asked for no more than the bytes of each of its choices, with the same candidates, and the
embedding and the head float in both. What both chose is rounded by the same stage (plain GPTQ on the same rows), so
that the choice alone differs. KL per token against the float model, window by window of held-out text; the interval is
of the mean difference between windows, by Student's t.

One thread. Writes ``benchmarks/results/auto-scheme.json`` after each row and the table of ``docs/search.md``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from scipy.stats import t as student

import goldstick
from benchmarks.accuracy_cases import Subject
from benchmarks.budget import ROWS, made
from benchmarks.searched_models import searched_subjects
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.search.layers import Layers, find_layers
from goldstick.jobs.search.losses import RowLosses
from goldstick.jobs.search.rows import in_batches
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.calibration import Calibration

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "auto-scheme.json"
DOCUMENT = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- written by benchmarks/auto_scheme.py -->", "<!-- end of AutoScheme -->"
WIDTHS = (2, 3, 4, 8)
#: Scheme → bits and group size, as AutoScheme says them; 32 divides no 172 inputs, which down_proj of stories260K has.
CANDIDATES = {
    "reference": {f"w{bits}a16-g{group}": [bits, group] for bits in WIDTHS for group in (32, 128)},
    "stories260k": {f"w{bits}a16-channel": [bits, -1] for bits in WIDTHS},
}
BITS = (4.25, 3.5, 3.0, 2.75)
SAMPLES, SEQ_LEN, JUDGED = 16, 256, 200


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of an environment with auto-round")
    parser.add_argument("--models", default="reference,stories260k")
    parser.add_argument("--efforts", default="default")
    parser.add_argument("--report", action="store_true", help="write the table from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [] if arguments.report else arguments.models.split(","):
            for bits, found in compared(
                searched_subjects()[name], Path(folder), arguments.python, arguments.efforts.split(",")
            ):
                results.setdefault(name, {})[bits] = found
                RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                print(name, bits, json.dumps(found), flush=True)
    text = table(results)
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def compared(subject: Subject, folder: Path, python: str, efforts: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each size: what both lose."""
    calibration = Calibration(dataset=subject.dataset, **ROWS)
    outside = ["*embed_tokens", "lm_head"]
    candidates = CANDIDATES[subject.name]
    schemes = {tuple(one): scheme for scheme, one in candidates.items()}
    layers = find_layers(
        subject.directory, RUNTIMES["goldstick"], method="gptq", calibration=calibration, schemes=tuple(candidates),
        exclude=outside, effort="fast",
    )  # fmt: skip
    names = [site.name for group in layers.groups for site in group.sites]
    chosen = auto_scheme(subject, names, list(candidates.values()), folder, python)
    print(f"AutoScheme chose in {chosen['processor_seconds']:.0f} s of processor time", flush=True)
    rows = judged(subject)
    for bits, given in chosen["chosen"].items():
        words = {name: schemes[tuple(one)] for name, one in given.items()}
        assert set(words) == set(names), "AutoScheme left layers out"
        theirs = layers.recipe(words)
        size = weight_file_bytes(make_plan(subject.directory, theirs))
        losses = rows.of(made(subject, theirs), "kl")
        found: dict[str, Any] = {"bytes": size, "auto_scheme": fmean(losses), "windows": len(losses)}
        for effort in efforts:
            recipe = goldstick.search(
                subject.directory, size=size, schemes=tuple(candidates), exclude=outside, dataset=subject.dataset,
                data_dir=subject.data, samples=SAMPLES, seq_len=SEQ_LEN, calibration=ROWS, effort=effort,  # type: ignore[arg-type]
                journal=folder / f"{subject.name}-{effort}.json",
            )  # fmt: skip
            ours = rows.of(made(subject, layers.recipe(picked(layers, recipe.search))), "kl")
            differences = [a - b for a, b in zip(ours, losses, strict=True)]
            half = student.ppf(0.975, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
            found[effort] = {
                "bytes": recipe.search["bytes"], "kl": fmean(ours),
                "difference": [fmean(differences), fmean(differences) - half, fmean(differences) + half],
            }  # fmt: skip
        yield bits, found | {"processor_seconds": chosen["processor_seconds"], "versions": chosen["versions"]}


def picked(layers: Layers, record: dict[str, Any]) -> dict[str, str]:
    """Site → scheme, as a search chose."""
    chosen = {group["name"]: group["chosen"] for group in record["groups"]}
    return {site.name: chosen[group.name] for group in layers.groups for site in group.sites}


def auto_scheme(
    subject: Subject, names: list[str], candidates: list[list[int]], folder: Path, python: str
) -> dict[str, Any]:
    """What AutoScheme chooses, at each average of bits."""
    model = load_float(subject.directory)
    text = Calibration(dataset=subject.dataset, samples=2 * SAMPLES, seq_len=2 * SEQ_LEN, allow_short=True)
    data = calibration_data(text, subject.directory, subject.data)(model)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(subject.directory)
    rows, output, spec = folder / "rows.json", folder / "auto-scheme.json", folder / "auto-scheme-spec.json"
    rows.write_text(json.dumps([{"text": tokenizer.decode(row)} for row in data.ids.tolist()]))
    spec.write_text(
        json.dumps(
            {
                "model": str(subject.directory), "layers": names, "candidates": candidates,
                "text": str(rows), "samples": SAMPLES, "seq_len": SEQ_LEN, "bits": BITS, "output": str(output),
            }
        )
    )  # fmt: skip
    script = ROOT / "benchmarks" / "peers" / "run_auto_scheme.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # A home of its own: scores that were kept from an earlier run would cost nothing.
    subprocess.run(
        [python, str(script), str(spec)], check=True, env=environment | {"HOME": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def judged(subject: Subject) -> RowLosses:
    """Windows of the evaluation text, which neither sees."""
    model = load_float(subject.directory).float().eval()
    ids = held_out_ids(subject)
    return RowLosses(model, in_batches(ids[:JUDGED]))


def held_out_ids(subject: Subject) -> torch.Tensor:
    """Windows of ``SEQ_LEN`` tokens of the evaluation task's text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(subject.directory)
    if subject.task == "text":
        text = (subject.data / "text" / "heldout.txt").read_text(encoding="utf-8")
    else:
        lines = gzip.decompress((subject.data / "tinystories" / "stories.jsonl.gz").read_bytes()).decode().splitlines()
        stories = [row for row in map(json.loads, lines) if row["part"] == "test"]
        text = "\n".join(row["text"] for row in stories[:400])
    ids = torch.tensor(tokenizer(text)["input_ids"])
    return ids[: len(ids) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)


def table(results: dict[str, Any]) -> str:
    """What was found, for the document."""
    lines = ["| model | bits | KL, AutoScheme | KL, search | difference, with its 95 % interval |", "|---" * 5 + "|"]
    for model, rows in results.items():
        for bits, row in sorted(rows.items(), key=lambda item: -float(item[0])):
            found = row["default"]
            mean, low, high = found["difference"]
            lines.append(
                f"| {model} | {bits} | {row['auto_scheme']:.4f} | {found['kl']:.4f} | "
                f"{mean:+.4f} ({low:+.4f} … {high:+.4f}) |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
