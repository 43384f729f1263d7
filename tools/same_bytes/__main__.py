"""The commands.

python -m tools.same_bytes record before.json     # in the tree before
python -m tools.same_bytes record after.json      # in the tree after
python -m tools.same_bytes compare before.json after.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tools.same_bytes.comparison import differences


def main() -> None:
    """Record what this tree writes, or compare two records; exit code 1 where they differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.same_bytes", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write checkpoints and a record of them")
    recording.add_argument("out", type=Path)
    recording.add_argument("--keep", type=Path, help="leave the checkpoints in this new directory")
    recording.add_argument("--only", default="", help="cases whose name contains this; no help texts then")
    recording.add_argument("--fresh", action="store_true", help="prove in fresh processes, as users do (slower)")
    comparing = commands.add_parser("compare", help="say where two records differ")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        first, second = (json.loads(path.read_text()) for path in (options.first, options.second))
        differing = list(differences(first, second))
        checkpoints, commands = len(first["checkpoints"]), len(first["help"])
        print("\n".join(differing) or f"{checkpoints} checkpoints and {commands} commands are equal")
        sys.exit(bool(differing))
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    from tools.same_bytes.proofs import forked
    from tools.same_bytes.record import record

    out = options.out.resolve()
    with tempfile.TemporaryDirectory() as folder, nullcontext() if options.fresh else forked():
        if options.keep:
            options.keep.mkdir()
        found = record((options.keep or Path(folder)).resolve(), options.only)
    out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    refused = [name for name, files in found["checkpoints"].items() if "refused" in files]
    for name in refused:
        print(f"{name}: {found['checkpoints'][name]['refused']}")
    print(f"{len(found['checkpoints'])} checkpoints, {len(refused)} of them refused")


if __name__ == "__main__":
    main()
