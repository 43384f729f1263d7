"""The table of docs/kv-cache.md about caches that need no data, from benchmarks/results."""

from __future__ import annotations

from benchmarks.accuracy_verdicts import Results
from benchmarks.kv_caches import CACHES, RESULTS
from tools.docs.results import table

_TITLES = {"reference": "reference", "keys": "reference, large keys", "stories260k": "stories260K"}


def costs() -> str:
    """A row for each cache: of each model perplexity over that of the float cache, and mean KL."""
    results = Results.read(RESULTS)
    rows = []
    for name in CACHES:
        cells = []
        for model in _TITLES:
            ratio, found = results.ratio(model, f"{name} cache"), results.row(model, f"{name} cache")
            cells.append(f"{ratio}; {1000 * found['kl']:.2f}" if ratio and found else "–")
        rows.append([name, *cells])
    return table(["cache", *_TITLES.values()], rows)
