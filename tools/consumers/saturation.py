"""W8A8 in vLLM on a processor, by the instructions that oneDNN may use: ``python -m tools.consumers.saturation``.

Without VNNI, oneDNN multiplies bytes by an instruction (vpmaddubsw) that adds two products in 16 bits and saturates.
The same checkpoint on the same machine is asked with ONEDNN_MAX_CPU_ISA set to instruction sets with VNNI and without;
the float model beside it shows what the setting changes otherwise. What is kept is the mean distance to the
log-probability of each token that goldstick's plain backend gives.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

import goldstick
from goldstick.jobs.load.find_model import reference_directory
from tools.consumers import BUNDLED
from tools.consumers.__main__ import ask, logprobs, machine
from tools.consumers.models import tokens
from tools.consumers.results import RESULTS, begun, keep

VARIABLE = "ONEDNN_MAX_CPU_ISA"


def main() -> int:
    """Print a line for each instruction set, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, metavar="PYTHON", help="a Python that has vLLM")
    parser.add_argument("--isa", nargs="*", default=["AVX512_CORE_VNNI", "AVX512_CORE", "AVX2"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept = begun(arguments.out)
    found = kept.setdefault("vllm_w8a8_by_instructions", {})
    kept["machine"] = machine()
    ids = tokens(BUNDLED)
    with tempfile.TemporaryDirectory(prefix="goldstick-saturation-") as name:
        folder = Path(name) / BUNDLED
        folder.mkdir()
        goldstick.quantize(reference_directory(), "rtn-w8a8-dynamic", output=folder / "w8a8", proof="tensors")
        (folder / "float").symlink_to(reference_directory(), target_is_directory=True)
        checkpoints = {part: folder / part for part in ("w8a8", "float")}
        mine = {part: logprobs(path, ids, torch.bfloat16) for part, path in checkpoints.items()}
        for isa in arguments.isa:
            os.environ[VARIABLE] = isa
            told = ask("vllm", arguments.vllm, checkpoints, {BUNDLED: ids}, folder)
            apart = {part: (torch.tensor(told[part]["logprobs"]) - mine[part]).abs() for part in checkpoints}
            found[isa] = {part: {"mean": float(one.mean()), "largest": float(one.max())} for part, one in apart.items()}
            print(f"{isa:20} " + ", ".join(f"{part} {one['mean']:.4f}" for part, one in found[isa].items()), flush=True)
            keep(arguments.out, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
