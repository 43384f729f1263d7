"""What quantized caches of keys and values cost: perplexity and mean KL beside the float cache, weights in float.

    python -m benchmarks.kv_caches [--models reference,stories260k,keys]

Each row gives a model a cache and evaluates it on the held-out text of :mod:`benchmarks.accuracy`; ratios of
perplexities have a 95 % interval of texts drawn again. ``keys`` is the reference model with one channel of every key
head ten times as large, and that of the queries a tenth: keys of larger models look like that. Writes
``benchmarks/results/kv-caches.json`` and the table of ``docs/kv-cache.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import Bench, keep
from benchmarks.accuracy_cases import FLOAT, Row, Subject, subjects
from benchmarks.accuracy_verdicts import Results
from goldstick.hf.names import quiet_libraries

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kv-caches.json"
LARGER = 10.0  # a channel of every key head
#: What tables call a cache → the options of ``kv_cache``.
CACHES: dict[str, dict[str, Any]] = {
    "int8, static": {},
    "int8, dynamic": {"mode": "dynamic"},
    "FP8, dynamic": {"dtype": "fp8", "mode": "dynamic"},
    "int4": {"dtype": "int4"},
    "int4, 4 sinks": {"dtype": "int4", "sinks": 4},
    "int4, rotated": {"dtype": "int4", "rotate": True},
    "int4, rotated, 4 sinks": {"dtype": "int4", "rotate": True, "sinks": 4},
}


def models() -> dict[str, Subject]:
    """The models by name."""
    known = subjects()
    found = {name: known[name] for name in ("reference", "stories260k")}
    return found | {"keys": replace(known["reference"], name="keys")}


def rows() -> Iterator[Row]:
    """All rows but the float one."""
    for method, options in CACHES.items():
        yield Row(method=method, scheme="cache", stages=[{"kv_cache": options}])


@torch.no_grad()
def enlarge_keys(model: Any) -> None:
    """Make a channel of every key head larger, and that of its queries as much smaller: scores stay what they are.

    Rotary embedding turns channels in pairs, half a head apart, so both of a pair are changed.
    """
    config = model.config
    channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in model.model.layers:
        attention = layer.self_attn
        for projection, factor in ((attention.k_proj, LARGER), (attention.q_proj, 1 / LARGER)):
            for parameter in projection.parameters():
                heads = parameter.unflatten(0, (-1, channels))
                heads[:, [0, channels // 2]] *= factor


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models()))
    parser.add_argument("--missing", action="store_true", help="measure rows that are not in the results alone")
    arguments = parser.parse_args()
    quiet_libraries()
    for name in arguments.models.split(","):
        bench = Bench.of(models()[name])
        if name == "keys":
            enlarge_keys(bench.model)
        for row in (FLOAT, *rows()):
            if arguments.missing and Results.read(RESULTS).row(name, row.name):
                continue
            found = keep(bench, row, RESULTS)
            print(f"{name:12s} {row.name:32s} ppl {found['perplexity']:.4f} KL {found['kl']:.5f}", flush=True)


if __name__ == "__main__":
    main()
