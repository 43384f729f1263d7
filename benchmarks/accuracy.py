"""What each recipe costs in accuracy: quantize, reload, evaluate, next to the float model in the same run.

``python benchmarks/accuracy.py MODEL --tasks tinystories --data-dir DIR [--schemes a,b] [--limit N]`` prints a table
and writes ``benchmarks/results/accuracy-NAME.json``.
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


def measure(model: str, scheme: str, search: str, options: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Metrics of a model quantized to ``scheme``, and its bits per weight."""
    recipe = {"stages": [{"rtn": {"scheme": scheme, "range_search": search, "indivisible": "channel"}}]}
    with tempfile.TemporaryDirectory() as folder:
        result = goldstick.quantize(model, recipe, output=Path(folder) / "out")
        evaluation = goldstick.evaluate(result.directory, **options).to_dict()
    return evaluation, result.report.size.bits_per_weight


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tasks", default="text")
    parser.add_argument("--data-dir", required=True, help="or 'reference'")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--search", default="mse", choices=["minmax", "mse"])
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    quiet_libraries()
    options = {"tasks": arguments.tasks.split(","), "data_dir": arguments.data_dir, "limit": arguments.limit}
    rows: dict[str, Any] = {"float": {"evaluation": goldstick.evaluate(arguments.model, **options).to_dict()}}
    show("float", None, rows["float"]["evaluation"])
    for scheme in arguments.schemes.split(","):
        evaluation, bits = measure(arguments.model, scheme, arguments.search, options)
        rows[scheme] = {"bits_per_weight": bits, "evaluation": evaluation}
        show(scheme, bits, evaluation)
    for row in rows.values():
        for task in row["evaluation"]["tasks"].values():
            task["details"].pop("items", None)
    RESULTS.mkdir(exist_ok=True)
    name = Path(arguments.model).name
    result = {"model": name, "range_search": arguments.search, "rows": rows, "environment": environment()}
    (RESULTS / f"accuracy-{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def show(name: str, bits: float | None, evaluation: dict[str, Any]) -> None:
    """One line of the table."""
    metrics = {
        f"{task} {metric}": value
        for task, result in evaluation["tasks"].items()
        for metric, value in result["metrics"].items()
        if metric != "bits_per_byte"
    }
    cells = "  ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
    print(f"{name:14s} {'' if bits is None else f'{bits:.2f} bits':10s} {cells}", flush=True)


if __name__ == "__main__":
    main()
