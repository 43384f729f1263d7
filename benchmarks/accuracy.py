"""What each scheme and algorithm costs in accuracy: quantize, reload, evaluate, next to the float model in one run.

``python benchmarks/accuracy.py MODEL --tasks tinystories --data-dir DIR --algorithms rtn,gptq --dataset tinystories``
prints a table and writes ``benchmarks/results/accuracy-NAME.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import goldstick
from goldstick.formats.transformers_names import quiet_libraries
from goldstick.pipeline.records import environment

SCHEMES = [f"w{bits}a16-{grain}" for bits in (8, 4, 3, 2) for grain in ("channel", "g32")]
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tasks", default="text")
    parser.add_argument("--data-dir", required=True, help="or 'reference'")
    parser.add_argument("--algorithms", default="rtn")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--dataset", default="reference", help="calibration data of calibrated algorithms")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    quiet_libraries()
    options = {"tasks": arguments.tasks.split(","), "data_dir": arguments.data_dir, "limit": arguments.limit}
    rows: dict[str, Any] = {"float": {"evaluation": goldstick.evaluate(arguments.model, **options).to_dict()}}
    show("float", rows["float"])
    for scheme in arguments.schemes.split(","):
        for algorithm in arguments.algorithms.split(","):
            rows[f"{algorithm} {scheme}"] = row = measure(arguments, algorithm, scheme, options)
            show(f"{algorithm} {scheme}", row)
    for row in rows.values():
        for task in row["evaluation"]["tasks"].values():
            task["details"].pop("items", None)
    RESULTS.mkdir(exist_ok=True)
    name = Path(arguments.model).name
    settings = {key: value for key, value in vars(arguments).items() if key not in ("model", "data_dir")}
    result = {"model": name, "settings": settings, "rows": rows, "environment": environment()}
    (RESULTS / f"accuracy-{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(arguments: argparse.Namespace, algorithm: str, scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the model quantized to ``scheme`` by ``algorithm``, and its bits per weight."""
    recipe = {
        "stages": [{algorithm: {"scheme": scheme, "range_search": "mse", "indivisible": "channel"}}],
        "calibration": {
            "dataset": arguments.dataset,
            "samples": arguments.samples,
            "seq_len": arguments.seq_len,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        report = goldstick.quantize(arguments.model, recipe, output=output, data_dir=arguments.data_dir).report
        evaluation = goldstick.evaluate(output, **options).to_dict()
    return {"bits_per_weight": report.size.bits_per_weight, "timing": dict(report.timing), "evaluation": evaluation}


def show(name: str, row: dict[str, Any]) -> None:
    """One line of the table."""
    cells = "  ".join(
        f"{task} {metric} {value:.4g}"
        for task, result in row["evaluation"]["tasks"].items()
        for metric, value in result["metrics"].items()
        if metric != "bits_per_byte"
    )
    bits = f"{row['bits_per_weight']:.2f} bits" if "bits_per_weight" in row else ""
    print(f"{name:18s} {bits:10s} {cells}", flush=True)


if __name__ == "__main__":
    main()
