"""The pages of goldstick as its commands write them for the bundled model, and the site of the documents."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tools.browser.browse import ROOT

#: The commands, in a folder that becomes the working directory; a page each, but for the first.
COMMANDS: Mapping[str, str] = {
    "compression.html": "quantize reference -r rtn-w4a16-g128 --evaluate text,boolq,squad,ceval -o w4 --proof tensors",
    "evaluation.html": "evaluate w4 --baseline reference --tasks text,boolq --report evaluation",
    "comparison.html": "compare reference w4 --dataset reference --attribute --generate 40 --html comparison.html",
    "sensitivity.html": "sensitivity reference --samples 2 --seq-len 128 --html sensitivity.html",
    "search.html": "search reference --share 50% --samples 4 --seq-len 128 --held-out-rows 8 -o search.yaml",
}
#: Where a command's page lies, when not under its name.
_LIES: Mapping[str, str] = {"compression.html": "w4/report.html", "evaluation.html": "evaluation/report.html"}


def pages_in(folder: Path) -> dict[str, Path]:
    """Where the pages lie that `make_pages` made, and the start page of `make_site`."""
    found = {Path(name).stem: folder / "made" / _LIES.get(name, name) for name in COMMANDS}
    return {**found, "site": folder / "site" / "index.html"}


def make_pages(folder: Path) -> None:
    """Run the commands, in ``made`` under a folder.

    Raises:
        subprocess.CalledProcessError: A command failed; it has said why.
    """
    made = folder / "made"
    made.mkdir(parents=True)
    goldstick = str(Path(sysconfig.get_path("scripts")) / "goldstick")
    for words in COMMANDS.values():
        print(f"goldstick {words}", flush=True)
        subprocess.run([goldstick, *words.split()], cwd=made, check=True, stdout=subprocess.DEVNULL)


def make_site(folder: Path) -> None:
    """Build the site of the documents, in ``site`` under a folder.

    Raises:
        subprocess.CalledProcessError: It does not build.
    """
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str((folder / "site").resolve())]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
