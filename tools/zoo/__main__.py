"""``python -m tools.zoo [NAME …] [--quick] --processes 2 --out FILE``: every architecture, or those that are named."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

#: What the whole zoo gave the last time.
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "zoo.json"


def main() -> None:
    """Run the zoo; write a JSON file, and docs/zoo.md where that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="classes of models or types of configs; all where none is named")
    parser.add_argument(
        "--quick", action="store_true", help="float, rounding and meaning only, of the fastest few of each kind"
    )
    parser.add_argument("--stages", nargs="+", help="some stages only")
    parser.add_argument("--kinds", nargs="+", default=[], help="some kinds only, such as 'object detection'")
    parser.add_argument("--resume", action="store_true", help="leave alone what the JSON file has already")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=150.0, help="that each architecture may take")
    parser.add_argument("--fresh-proofs", action="store_true", help="prove in fresh processes, as users do; slower")
    parser.add_argument("--out", type=Path, help="the JSON file")
    parser.add_argument("--table", type=Path, help="the Markdown file whose part below its mark is written anew")
    given = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRITON_INTERPRET="1")

    import torch
    import transformers

    import goldstick
    from tools.zoo.catalogue import architectures
    from tools.zoo.herd import run
    from tools.zoo.quick import a_few
    from tools.zoo.stages import QUICK, STAGES, Record, live
    from tools.zoo.table import line, summary, write_table

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    everything = len(architectures())
    herd = [one for one in architectures(given.names) if not given.kinds or one.kind in given.kinds]
    if given.quick and not given.names:
        herd = a_few(herd, json.loads(RESULTS.read_text())["architectures"] if RESULTS.exists() else {})
    stages = tuple(given.stages) if given.stages else QUICK if given.quick else STAGES
    versions = {"python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__, "goldstick": goldstick.__version__}  # fmt: skip
    whole = {"versions": versions, "stages": list(stages), "seconds": 0.0, "of": everything, "architectures": {}}
    if given.resume and given.out and given.out.exists():
        whole = json.loads(given.out.read_text())
        herd = [one for one in herd if one.name not in whole["architectures"]]
    live(*architectures(["LlamaForCausalLM"]), stages)  # what is imported at first use is shared by all
    started, before, counted = time.monotonic(), whole["seconds"], 0

    def write() -> None:
        whole["seconds"] = round(before + time.monotonic() - started, 1)
        if given.out:
            given.out.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")

    def done(name: str, record: Record) -> None:
        nonlocal counted
        counted += 1
        whole["architectures"][name] = record
        print(f"{counted:4}/{len(herd)} {line(name, record)}", flush=True)
        if counted % 5 == 0:
            write()

    run(herd, stages, given.processes, seconds=given.seconds, fresh_proofs=given.fresh_proofs, done=done)
    write()
    print(summary(whole))
    if given.table:
        write_table(whole, given.table)


if __name__ == "__main__":
    main()
