"""What compression costs the reference model on every task: `python -m benchmarks.tasks [--only 'gptq*/boolq*']`.

The skills that the bundled model was trained for, on the data that come with it, and the real BoolQ, SQuAD 1.1,
WikiText-2 and C-Eval (found through GOLDSTICK_SHARED), which a model of this size cannot do: those show that a
compressed model fails in the same way. Each figure has its interval, each difference a verdict over the same items.

Results go to benchmarks/results/tasks.json cell by cell, and the table to docs/tasks.md. A run goes on where the last
one stopped; checkpoints and evaluations are kept in build/tasks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.cells import FLOAT, Measurement, Scheme, Table, markdown, read_results, write_behind
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.find_model import reference_directory

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "tasks.json"
DOCUMENT = ROOT / "docs" / "tasks.md"
MARK = "<!-- written by benchmarks/tasks.py -->\n"

#: Items of the real data sets at most; the whole of SQuAD and WikiText-2 would take about ten times as long.
LIMITS: dict[str, int | None] = {"boolq": None, "squad": 300, "wikitext2": 100, "ceval": None}
METRICS = {"text": "perplexity", "wikitext2": "perplexity", "boolq": "accuracy", "squad": "f1", "ceval": "accuracy"}


def schemes() -> list[Scheme]:
    """The columns: 8 bits, 4 bits by three methods, 3 and 2 bits by GPTQ, an int8 KV cache."""
    calibration = {"dataset": "reference", "samples": 128, "seq_len": 256}

    def scheme(name: str, *stages: dict[str, object]) -> Scheme:
        return Scheme(name=name, recipe={"stages": list(stages), "calibration": calibration})

    def weights(bits: int) -> dict[str, object]:
        return {"scheme": f"w{bits}a16-g32"}

    return [
        Scheme(name=FLOAT),
        scheme("w8a8 dynamic", {"rtn": {"scheme": "w8a8-dynamic"}}),
        scheme("w4 rtn", {"rtn": {**weights(4), "range_search": "mse"}}),
        scheme("w4 gptq", {"gptq": weights(4)}),
        scheme("w4 awq", {"awq": weights(4)}),
        scheme("w3 gptq", {"gptq": weights(3)}),
        scheme("w2 gptq", {"gptq": weights(2)}),
        scheme("kv8", {"kv_cache": {"mode": "static"}}),
    ]


def table() -> Table:
    """All cells."""
    own = reference_directory() / "data"
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared") / "data"
    bundled = [
        Measurement(name=f"{task}, bundled", task=task, data=own) for task in ("text", "boolq", "squad", "ceval")
    ]
    real = [Measurement(name=task, task=task, data=shared, limit=limit) for task, limit in LIMITS.items()]
    return Table(
        model=reference_directory(),
        schemes=schemes(),
        measurements=[*bundled, *real],
        calibration=own,
        build=ROOT / "build" / "tasks",
        results=RESULTS,
    )


def write_document() -> None:
    """Put the table into the document, behind the mark."""
    cells = table()
    rows = [(one.name, METRICS[one.task]) for one in cells.measurements]
    shown = markdown(read_results(RESULTS), [scheme.name for scheme in cells.schemes], rows)
    write_behind(DOCUMENT, MARK, shown)


def main() -> None:
    """Measure what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cells SCHEME/TASK, such as 'w4*/boolq*'")
    quiet_libraries()
    table().run(parser.parse_args().only)
    write_document()


if __name__ == "__main__":
    main()
