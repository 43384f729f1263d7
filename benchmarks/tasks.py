"""What compression costs the reference model on every task: `python -m benchmarks.tasks [--only 'gptq*/boolq*']`.

The skills that the bundled model was trained for, on the data that come with it, and the real BoolQ, SQuAD 1.1,
WikiText-2 and C-Eval (found through GOLDSTICK_SHARED), which a model of this size cannot do: those show that a
compressed model fails in the same way. Each figure has its interval, each difference a verdict over the same items.
A second table has number formats and K-quants, on fewer items of the real data. Calibrated recipes are those of
``--effort default``.

Results go to benchmarks/results/tasks.json cell by cell, and the tables to docs/tasks.md. A run goes on where the last
one stopped; checkpoints and evaluations are kept in build/tasks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.cells import FLOAT, Measurement, Scheme, Table, markdown, read_results, write_behind
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.find_model import reference_directory
from goldstick.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "tasks.json"
DOCUMENT = ROOT / "docs" / "tasks.md"
MARK = "<!-- written by benchmarks/tasks.py -->\n"
FORMATS_MARK = "<!-- number formats, written by benchmarks/tasks.py -->\n"

#: Items of the real data sets at most; the whole of SQuAD and WikiText-2 would take about ten times as long.
LIMITS: dict[str, int | None] = {"boolq": None, "squad": 300, "wikitext2": 100, "ceval": None}
#: Items of the real data sets for number formats.
FEWER = {"boolq": 400, "squad": 100, "wikitext2": 100, "ceval": 400}
METRICS = {"text": "perplexity", "wikitext2": "perplexity", "boolq": "accuracy", "squad": "f1", "ceval": "accuracy"}


def _scheme(name: str, *stages: dict[str, object], **more: object) -> Scheme:
    """By default settings."""
    calibration = {"dataset": "reference", "samples": 128, "seq_len": 256}
    recipe = Recipe.model_validate({"stages": list(stages), "calibration": calibration, **more})
    return Scheme(name=name, recipe=recipe.with_effort("default"))


def schemes() -> list[Scheme]:
    """The columns: 8 bits, 4 bits by three methods, 3 and 2 bits by GPTQ, an int8 KV cache."""

    def weights(bits: int) -> dict[str, object]:
        return {"scheme": f"w{bits}a16-g32"}

    return [
        Scheme(name=FLOAT),
        _scheme("w8a8 dynamic", {"rtn": {"scheme": "w8a8-dynamic"}}),
        _scheme("w4 rtn", {"rtn": {**weights(4), "range_search": "mse"}}),
        _scheme("w4 gptq", {"gptq": weights(4)}),
        _scheme("w4 awq", {"awq": weights(4)}),
        _scheme("w3 gptq", {"gptq": weights(3)}),
        _scheme("w2 gptq", {"gptq": weights(2)}),
        _scheme("kv8", {"kv_cache": {"mode": "static"}}),
    ]


def format_schemes() -> list[Scheme]:
    """The columns of the second table: 8 and 4 bits as integers, then FP8, MX, NVFP4 and K-quants beside them."""
    integers = [one for one in schemes() if one.name in (FLOAT, "w8a8 dynamic", "w4 gptq")]

    def k_quant(mixture: str) -> Scheme:
        head = {"scheme": mixture, "range_search": "ggml", "targets": {"include": ["@embedding", "@head"]}}
        solved = {"scheme": mixture, "range_search": "ggml-imatrix"}
        return _scheme(f"{mixture} gptq", {"gptq": solved}, {"rtn": {**head, "tie": "keep"}}, export={"format": "gguf"})

    return [
        *integers,
        _scheme("w4 g128 gptq", {"gptq": {"scheme": "w4a16-g128"}}),
        _scheme("fp8 dynamic", {"rtn": {"scheme": "fp8-dynamic", "range_search": "minmax"}}),
        _scheme("fp8 block", {"rtn": {"scheme": "fp8-block", "range_search": "minmax"}}),
        _scheme("w4afp8 gptq", {"gptq": {"scheme": "w4afp8"}}),
        _scheme("nf4a16 gptq", {"gptq": {"scheme": "nf4a16"}}),
        _scheme("mxfp8", {"rtn": {"scheme": "mxfp8", "range_search": "minmax"}}),
        _scheme("mxfp4 gptq", {"gptq": {"scheme": "mxfp4"}}),
        _scheme("mxfp4a16 gptq", {"gptq": {"scheme": "mxfp4a16"}}),
        _scheme("nvfp4 gptq", {"gptq": {"scheme": "nvfp4"}}),
        _scheme("nvfp4a16 gptq", {"gptq": {"scheme": "nvfp4a16"}}),
        k_quant("q5_k_m"),
        k_quant("q4_k_m"),
        k_quant("q3_k_m"),
    ]


def table() -> Table:
    """The cells of schemes on whole sets, or most of them."""
    return _table(schemes(), [_real(task, limit, task) for task, limit in LIMITS.items()])


def format_table() -> Table:
    """The cells of number formats and K-quants."""
    return _table(format_schemes(), [_real(task, limit, f"{task}, {limit} items") for task, limit in FEWER.items()])


def _real(task: str, limit: int | None, name: str) -> Measurement:
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared") / "data"
    return Measurement(name=name, task=task, data=shared, limit=limit)


def _table(columns: list[Scheme], real: list[Measurement]) -> Table:
    own = reference_directory() / "data"
    bundled = [
        Measurement(name=f"{task}, bundled", task=task, data=own) for task in ("text", "boolq", "squad", "ceval")
    ]
    return Table(
        model=reference_directory(),
        schemes=columns,
        measurements=[*bundled, *real],
        calibration=own,
        build=ROOT / "build" / "tasks",
        results=RESULTS,
    )


def write_document() -> None:
    """Put the tables into the document, behind their marks."""
    for cells, mark in ((table(), MARK), (format_table(), FORMATS_MARK)):
        measured = [(one.name, METRICS[one.task]) for one in cells.measurements]
        shown = markdown(read_results(RESULTS), [scheme.name for scheme in cells.schemes], measured)
        write_behind(DOCUMENT, mark, shown)


def main() -> None:
    """Measure what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cells SCHEME/TASK, such as 'w4*/boolq*'")
    quiet_libraries()
    only = parser.parse_args().only
    for cells in (table(), format_table()):
        cells.run(only)
    write_document()


if __name__ == "__main__":
    main()
