"""What Hadamard transforms of inputs at run time (R4) gain where activations are rounded too, beside R1 and R2 alone.

    python -m benchmarks.online_rotation [--models reference,planted] [--only 'w4a8*'] [--missing]

Each row loads a model in float32, applies a recipe in memory and compares its next tokens with the float model's: the
mean KL divergence over the held-out text of :mod:`benchmarks.accuracy`. Weights are solved by GPTQ in all of them.
``planted`` is the reference model with outliers at the inputs of down and output projections: 2 % of the channels of
the layers before them, times 20 to 100 (``python -m tools.planted_outliers --behind linear``). R1 reaches none of them,
R2 those of output projections, within each head. A further row leaves those inputs in float: the error of everything
else.

Writes ``benchmarks/results/online-rotation.json`` after each row; ``python -m tools.docs`` makes a table of it.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy import Bench, keep
from benchmarks.accuracy_cases import FLOAT, PLANTED_FACTORS, PLANTED_SEED, PLANTED_SHARE, Row, Subject, subjects
from benchmarks.accuracy_verdicts import Results
from goldstick.core.scheme import Scheme
from goldstick.hf.names import quiet_libraries
from tools.planted_outliers import plant

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "online-rotation.json"
SCHEMES = ("w8a8-dynamic", "w4a8-dynamic-g32", "w4a4-dynamic-g32", "mxfp4", "nvfp4")
#: What is turned, as tables call it → the options of ``rotate``; none where nothing is.
ROTATIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "R1, R2": {},
    "R1, R2, R4": {"online": True},
}
#: Beside R1 and R2: the inputs that R4 turns are not rounded at all.
IN_FLOAT, TURNED = "R1, R2, inputs in float", ("*down_proj", "*o_proj")
#: The same within the groups of MXFP4.
IN_BLOCKS = {
    "R1, R2 in blocks of 32": {"block_size": 32},
    "R1, R2, R4 in blocks of 32": {"block_size": 32, "online": True},
}


def models() -> dict[str, Subject]:
    """The models by name."""
    reference = subjects()["reference"]
    return {"reference": reference, "planted": replace(reference, name="planted")}


def rows() -> Iterator[Row]:
    """All rows but the float one."""
    for scheme in SCHEMES:
        rotations = ROTATIONS | IN_BLOCKS if scheme.startswith("mx") else ROTATIONS
        for method, options in rotations.items():
            before = [] if options is None else [{"rotate": options}]
            gptq = {"scheme": scheme, "group_size_mismatch": "channel"}
            yield Row(method=method, scheme=scheme, stages=[*before, {"gptq": gptq}])
        weights_alone = replace(Scheme.parse(scheme), activation=None).label
        gptq |= {"overrides": dict.fromkeys(TURNED, weights_alone)}
        yield Row(method=IN_FLOAT, scheme=scheme, stages=[{"rotate": {}}, {"gptq": gptq}])


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models()))
    parser.add_argument("--only", default="*", help="patterns of the rows to measure, such as '*w4a8*,*nvfp4'")
    parser.add_argument("--missing", action="store_true", help="measure rows that are not in the results alone")
    arguments = parser.parse_args()
    quiet_libraries()
    patterns = arguments.only.split(",")
    for name in arguments.models.split(","):
        bench = Bench.of(models()[name])
        if name == "planted":
            plant(bench.model, PLANTED_SHARE, PLANTED_FACTORS, PLANTED_SEED, behind="linear")
        for row in (FLOAT, *rows()):
            if row is not FLOAT and not any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns):
                continue
            if arguments.missing and Results.read(RESULTS).row(name, row.name):
                continue
            found = keep(bench, row, RESULTS)
            print(f"{name:12s} {row.name:40s} KL {found['kl']:.5f} {found['seconds']:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
