"""The reference model pruned, fine-tuned and rounded, against rounded alone: `python -m benchmarks.pruned_language`.

A quarter of the MLP channels and heads goes by SCOP, the rest is fine-tuned and rounded to 4 bits, all by one recipe.
Beside it stand 4 bits alone, and 3 bits alone, which are about as many bytes as the pruned network at 4. All three are
calibrated with the text that it is fine-tuned on, which is generated: the model knows a generated world.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.block_reconstruction import ROOT, measured, write_table
from tools.reference_model.bundle import calibration_text

#: More than a token of the generated text has.
_BYTES_OF_A_TOKEN = 5


def main() -> None:
    """Measure and write the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    gates = {
        "steps": arguments.gate_steps, "rate": 0.02, "betas": [0.5, 0.9], "schedule": "constant", "norm_batches": 0,
        "seed": arguments.seed,
    }  # fmt: skip
    tuning = {"steps": arguments.steps, "rate": arguments.rate, "warmup": 0.05, "seed": arguments.seed}
    stages = [{"scop": {"rate": arguments.share, "training": gates}}, {"finetune": {"training": tuning}}]
    recipes = {
        "w4": [{"gptq": {"scheme": "w4a16-g64"}}],
        "w3": [{"gptq": {"scheme": "w3a16-g64"}}],
        "scop, finetune, w4": [*stages, {"gptq": {"scheme": "w4a16-g64"}}],
    }
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        size = arguments.samples * arguments.seq_len * _BYTES_OF_A_TOKEN
        text.write_text(calibration_text(size, arguments.seed), encoding="utf-8")
        rows = [measured(name, arguments, *recipe, dataset=str(text)) for name, recipe in recipes.items()]
    write_table(rows, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.25, help="of the channels and heads that go")
    parser.add_argument("--gate-steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500, help="of the fine-tuning")
    parser.add_argument("--rate", type=float, default=1e-3, help="of the fine-tuning")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--limit", type=int, help="measure on the first so many windows of the text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "pruned-language.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
