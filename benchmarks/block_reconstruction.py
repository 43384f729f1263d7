"""SLB behind GPTQ, against GPTQ alone, on the reference model: `python -m benchmarks.block_reconstruction`.

Both begin with the same calibration data; SLB goes on from GPTQ's codes, block by block. Perplexity is that of held-out
text, with the intervals of the pairs; KL is the mean divergence from the float model's predictions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import goldstick

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measure and write the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    rounding = {"gptq": {"scheme": arguments.scheme}}
    reconstruction = {"slb_finish": {"steps": arguments.steps, "seed": arguments.seed}}
    rows = [
        measured("gptq", arguments, rounding),
        measured("gptq, slb_finish", arguments, rounding, reconstruction),
    ]
    write_table(rows, arguments)


def measured(name: str, arguments: argparse.Namespace, *stages: Any, dataset: str = "reference") -> dict[str, Any]:
    """The reference model after some stages: its size, and what it has lost.

    Args:
        name: What the row is called.
        arguments: ``samples``, ``seq_len`` and ``seed`` of the calibration data, ``limit`` of the evaluation.
        stages: The stages of the recipe.
        dataset: What it is calibrated, and trained, with.
    """
    calibration = {
        "dataset": dataset, "samples": arguments.samples, "seq_len": arguments.seq_len, "seed": arguments.seed,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        report = goldstick.quantize(
            "reference", {"stages": list(stages), "calibration": calibration}, output=Path(folder) / "out",
            evaluate=["text"], limit=arguments.limit,
        ).report  # fmt: skip
        seconds = time.perf_counter() - started
    found = report.evaluation
    before, after = (found[side]["tasks"]["text"]["metrics"]["perplexity"] for side in ("before", "after"))
    apart = found["divergence"]["text"]
    pruned = {key: report.pruning[0][key] for key in ("parameters", "macs", "seconds")} if report.pruning else {}
    return {
        "stages": name,
        "bytes": report.size.bytes_after,
        "bits_per_weight": report.size.bits_per_weight,
        "perplexity_float": before,
        "perplexity": after,
        "perplexity_interval_95": found["after"]["tasks"]["text"]["details"]["interval_95"]["perplexity"],
        "mean_kl": apart["metrics"]["token_kl"],
        "mean_kl_interval_95": apart["details"]["interval_95"]["token_kl"],
        "same_likeliest_token": apart["metrics"]["top1_agreement"],
        **({"pruned": pruned} if pruned else {}),
        "seconds": seconds,
        "quantize_seconds": report.timing["quantize_and_write"],
    }


def write_table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write rows to the file ``out`` of the arguments, and print them."""
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    arguments.out.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{'':32} bytes       perplexity      KL   same token   seconds")
    for row in rows:
        print(
            f"{row['stages']:32} {row['bytes']:10,} {row['perplexity']:10.4f} {row['mean_kl']:7.4f} "
            f"{row['same_likeliest_token']:10.2f} % {row['seconds']:9.0f}"
        )
    print(f"float: {rows[0]['perplexity_float']:.4f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", default="w2a16-g32")
    parser.add_argument("--steps", type=int, default=200, help="of the block reconstruction, for each block")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--limit", type=int, help="measure on the first so many windows of the text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "block_reconstruction.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
