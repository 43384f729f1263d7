"""What 8 and 4 bits cost a real encoder on SQuAD 1.1: `python -m benchmarks.encoder --model DIR [--limit N]`.

The model is all-MiniLM-L6-v2 with the span head that tools/minilm_squad trains; the questions are those of the local
part of the development set, found through GOLDSTICK_SHARED. Results go to benchmarks/results/minilm-squad.json, the
table to docs/tasks.md. A run goes on where the last one stopped; checkpoints and evaluations are kept in build/encoder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

from benchmarks.cells import FLOAT, Measurement, Scheme, Table, markdown, read_results, write_behind
from goldstick.hf.names import quiet_libraries

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "minilm-squad.json"
DOCUMENT = ROOT / "docs" / "tasks.md"
MARK = "<!-- written by benchmarks/encoder.py -->\n"


def schemes() -> list[Scheme]:
    """The columns, none of which looks at data: 8 bits all through, and 4-bit weights."""
    return [
        Scheme(name=FLOAT),
        Scheme(name="w8a8 dynamic", recipe={"stages": [{"rtn": {"scheme": "w8a8-dynamic"}}]}),
        Scheme(name="w4a16-g128", recipe={"stages": [{"rtn": {"scheme": "w4a16-g128", "range_search": "mse"}}]}),
        Scheme(name="w4a16-g32", recipe={"stages": [{"rtn": {"scheme": "w4a16-g32", "range_search": "mse"}}]}),
    ]


def name_of(limit: int | None) -> str:
    """What the results call a measurement; those with a limit stand beside those without."""
    return "squad" if limit is None else f"squad, {limit} questions"


def table(model: Path, limit: int | None) -> Table:
    """All cells of one model; its checkpoints lie in a folder of their own."""
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared") / "data"
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
    return Table(
        model=model,
        schemes=schemes(),
        measurements=[Measurement(name=name_of(limit), task="squad", data=shared, limit=limit)],
        calibration=shared,
        build=ROOT / "build" / "encoder" / digest,
        results=RESULTS,
    )


def main() -> None:
    """Measure what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="what tools/minilm_squad wrote, its folder model")
    parser.add_argument("--limit", type=int, help="questions at most, evenly spaced; all of them without")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cells SCHEME/squad, such as 'w8*'")
    arguments = parser.parse_args()
    quiet_libraries()
    training = json.loads((arguments.model / "training.json").read_text(encoding="utf-8"))
    table(arguments.model, arguments.limit).run(arguments.only, {"training": training})
    write_document()


def write_document() -> None:
    """Put the table into the document, a row for each number of questions and each metric."""
    found = read_results(RESULTS)
    tasks = dict.fromkeys(name.partition("/")[2] for name in found["cells"])
    rows = [(task, metric) for task in tasks for metric in ("f1", "exact_match")]
    write_behind(DOCUMENT, MARK, markdown(found, [scheme.name for scheme in schemes()], rows))


if __name__ == "__main__":
    main()
