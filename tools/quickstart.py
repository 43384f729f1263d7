"""The main job on the bundled model, as the commands a user would type: quantize, verify, compare, generate."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

OUTPUT = Path("build/quickstart/reference-w4a16-g128")
TASKS = "text,boolq,squad,ceval"
COMMANDS = [
    ["quantize", "reference", "--recipe", "rtn-w4a16-g128", "-o", str(OUTPUT)],
    ["verify", str(OUTPUT)],
    ["evaluate", str(OUTPUT), "--baseline", "reference", "--tasks", TASKS, "--report", str(OUTPUT.parent)],
]


def main() -> int:
    """Run the commands in fresh processes, each shown before it runs."""
    goldstick = str(Path(sysconfig.get_path("scripts")) / "goldstick")
    shutil.rmtree(OUTPUT.parent, ignore_errors=True)
    OUTPUT.parent.mkdir(parents=True)
    for command in COMMANDS:
        print(f"\n$ goldstick {' '.join(command)}", flush=True)
        code = subprocess.run([goldstick, *command], check=False).returncode
        if code:
            return code
    print(f"\nThe checkpoint lies in {OUTPUT}, its report in {OUTPUT / 'report.html'},")
    print(f"the comparison before and after in {OUTPUT.parent / 'report.html'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
