"""llama.cpp's own quantizer with its own importance matrix beside GPTQ on the same blocks: files of equal size.

    python -m benchmarks.llama_cpp_quantizer --python PYTHON [--out benchmarks/results/llama-cpp-quantizer.json]

``PYTHON`` has llama-cpp-python (``make llama-cpp-check`` builds one). The importance matrix is what llama.cpp's tool
gathers: the squares of the inputs of every linear layer of the float model, over the text that GPTQ is calibrated on.
It is written as a GGUF file, read back, and given to llama.cpp's quantizer. Its files are then models like any other:
mean KL to the float model over held-out text. Ratios are of the same documents, with their 95 % intervals
(:mod:`benchmarks.k_quants`). stories260K is filled up to whole superblocks first (:mod:`benchmarks.padded_model`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import goldstick
from benchmarks.accuracy import SAMPLES, SEQ_LEN, Bench
from benchmarks.accuracy_cases import Subject, subjects
from benchmarks.k_quants import kl_of, measure, ratio
from benchmarks.padded_model import padded
from goldstick.checkpoint.gguf.architectures import architecture_of_config
from goldstick.checkpoint.gguf.importance import read_importance, write_importance
from goldstick.checkpoint.gguf.names import place_of
from goldstick.core.grid import SUPERBLOCK
from goldstick.core.input_squares import InputSquares
from goldstick.core.mixture import MIXTURES
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.names import load_config, quiet_libraries
from goldstick.jobs.save.records import environment
from tools.llama_cpp.check import WORKER, float_file

COMPARED = ("q4_k_m", "q3_k_m", "q2_k_m")
METHODS = ("rtn", "imatrix", "gptq", "gptaq")
#: Mixture → the ratio to llama.cpp's mean KL that is aimed at.
TARGETS = {"q4_k_m": 0.8, "q3_k_m": 0.7, "q2_k_m": 0.6}


def main() -> None:
    """Measure and write; figures of models that are not asked for stay as they are in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--models", default="reference,stories260k")
    parser.add_argument("--mixtures", default=",".join(COMPARED))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/llama-cpp-quantizer.json"))
    arguments = parser.parse_args()
    quiet_libraries()
    found: dict[str, Any] = {"models": {}}
    if arguments.out.is_file():
        found = json.loads(arguments.out.read_text(encoding="utf-8"))
    found |= {"environment": environment(), "targets": TARGETS}
    for model in arguments.models.split(","):
        with tempfile.TemporaryDirectory(prefix="goldstick-quantizer-") as name:
            bench = Bench.of(_whole_superblocks(subjects()[model], Path(name) / "padded"))
            rows = found["models"].setdefault(model, {})
            for mixture in arguments.mixtures.split(","):
                rows[mixture] = compared(bench, mixture, arguments.methods.split(","), Path(name), arguments.python)
                for method, row in rows[mixture].items():
                    low, middle, high = row["to_llama_cpp"]
                    said = f"KL {row['kl']:.5f}, {middle:.2f} ({low:.2f}…{high:.2f})"
                    print(f"{model:12s} {mixture:9s} {method:9s} {said}", flush=True)
                arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def compared(bench: Bench, mixture: str, methods: Sequence[str], folder: Path, python: str) -> dict[str, Any]:
    """KL of llama.cpp's file and of methods of goldstick's, each with its ratio to llama.cpp's, by what made them."""
    plain, matrix, file = folder / GGUF_NAME, folder / "imatrix.npz", folder / f"{mixture}.gguf"
    if not matrix.is_file():
        float_file(bench.subject.directory, folder)
        importance_matrix(bench, folder)
    command = ["quantize", str(plain), str(file), MIXTURES[mixture].published, "mixed", str(matrix)]
    subprocess.run([python, str(WORKER), *command], check=True, capture_output=True)
    theirs = kl_of(bench, goldstick.load(file, dtype=torch.float32))
    rows = {"llama.cpp": {**theirs, "bytes": file.stat().st_size}}
    for method in methods:
        rows[method] = measure(bench, f"{method}-{mixture}")
    return {method: row | {"to_llama_cpp": ratio(row, theirs)} for method, row in rows.items()}


def _whole_superblocks(subject: Subject, folder: Path) -> Subject:
    """The subject, or its model filled up where rows do not divide into superblocks."""
    config: Any = load_config(subject.directory)
    if config.hidden_size % SUPERBLOCK == config.intermediate_size % SUPERBLOCK == 0:
        return subject
    return dataclasses.replace(subject, directory=padded(subject.directory, folder))


def importance_matrix(bench: Bench, folder: Path) -> None:
    """The importance matrix of a model as a GGUF file, and what it says as an .npz file: mean squares by tensor."""
    architecture = architecture_of_config(load_config(bench.subject.directory).to_dict())
    found = {}
    for name, (sums, tokens) in input_squares(bench).items():
        for place in place_of(f"{name}.weight", architecture).names:
            found[place] = InputSquares(sums=sums.float().unsqueeze(0), counts=torch.tensor([float(tokens)]))
    write_importance(
        folder / "imatrix.gguf", found, datasets=[bench.subject.dataset], chunks=SAMPLES, chunk_size=SEQ_LEN
    )
    read = {name: each.mean_square().numpy() for name, each in read_importance(folder / "imatrix.gguf").items()}
    np.savez(folder / "imatrix.npz", **read)


def input_squares(bench: Bench) -> dict[str, tuple[Tensor, int]]:
    """Name of a linear layer but the head → Σ x² of each input column, float64 [in], and the number of tokens."""
    sums: dict[str, tuple[Tensor, int]] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            before, tokens = sums.get(name, (torch.zeros(rows.shape[1], dtype=torch.float64), 0))
            sums[name] = before + rows.square().sum(0), tokens + len(rows)

        return note

    head = bench.model.get_output_embeddings()
    hooks = [
        module.register_forward_pre_hook(noting(name))
        for name, module in bench.model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    with torch.no_grad():
        for batch in bench.batches:
            bench.model(**batch)
    for hook in hooks:
        hook.remove()
    return sums


if __name__ == "__main__":
    main()
