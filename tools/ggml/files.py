"""Are goldstick's mixtures the files that llama.cpp's quantizer makes, tensor for tensor?

    python -m tools.ggml.files --python PYTHON [--mixtures q4_k_m,q3_k_s]

Quantizes the bundled reference model with both, plainly; ``PYTHON`` has llama-cpp-python. For Q2_K_S llama.cpp asks for
an importance matrix; the small blocks of IQ4_NL have bfloat16 scales in a bfloat16 model.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np

import goldstick
from goldstick.core.mixture import MIXTURES
from goldstick.formats.gguf import GGUF_NAME
from goldstick.jobs.load.find_model import reference_directory
from goldstick.recipes.sentence import parse
from tools.llama_cpp.check import WORKER, float_file

COMPARED = tuple(name for name in MIXTURES if name not in ("q2_k_s", "iq4_nl_m"))


def main() -> int:
    """Print a line for each mixture; 1 where a tensor differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--mixtures", default=",".join(COMPARED))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goldstick-mixtures-") as folder:
        plain = float_file(reference_directory(), Path(folder))
        return sum(_differs(name, plain, Path(folder), arguments.python) for name in arguments.mixtures.split(",")) > 0


def _differs(name: str, plain: Path, folder: Path, python: str) -> bool:
    theirs, mine = folder / f"{name}.gguf", folder / name
    command = [python, str(WORKER), "quantize", str(plain), str(theirs), MIXTURES[name].published, "mixed"]
    subprocess.run(command, check=True, capture_output=True)
    recipe = {**parse(f"rtn-{name}").recipe(), "export": {"format": "gguf"}}
    goldstick.quantize(reference_directory(), recipe, output=mine, proof="tensors")
    found, expected = _tensors(mine / GGUF_NAME), _tensors(theirs)
    equal = sum(found[key][0] == kind and np.array_equal(found[key][1], data) for key, (kind, data) in expected.items())
    print(f"{name:9s} {equal} of {len(expected)} tensors equal, {theirs.stat().st_size} bytes", flush=True)
    return equal < len(expected) or found.keys() != expected.keys()


def _tensors(file: Path) -> dict[str, tuple[str, np.ndarray]]:
    return {tensor.name: (tensor.tensor_type.name, tensor.data) for tensor in gguf.GGUFReader(file).tensors}


if __name__ == "__main__":
    raise SystemExit(main())
