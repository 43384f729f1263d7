"""Does GPTQModel read what goldstick writes? Continuous integration asks it about a small model in GPTQ and in AWQ.

``python -m benchmarks.gptqmodel_check --gptqmodel PYTHON`` (or ``make gptqmodel-check``, which makes the environment)
quantizes a Llama of one block, lets plain transformers with GPTQModel answer from the files, and ends with an error
where a logit is further than 5e-4 from goldstick's over the same arithmetic. ``make cross-reading`` does this and more
with the reference model.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.cross_reading import BOUND, Work
from benchmarks.cross_reading_cases import miniature

CASES = ("gptq w4 g32", "awq g32 asymmetric")


def main() -> None:
    """Print a line for each case, and fail where the two are apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptqmodel", required=True, metavar="PYTHON", help="a Python that has GPTQModel and optimum")
    with tempfile.TemporaryDirectory(prefix="goldstick-gptqmodel-check-") as folder:
        work = Work(Path(folder), {"gptqmodel": parser.parse_args().gptqmodel})
        work.model = miniature(work.folder / "float")
        found = work.read_there(work.write_here(CASES))
    apart = {name: case["difference"] for name, case in found.items() if not case["difference"] <= BOUND}
    if apart:
        raise SystemExit(f"Further apart than {BOUND}: {apart}")


if __name__ == "__main__":
    main()
