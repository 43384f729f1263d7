"""Do goldstick's block types have the bytes of ggml's own quantizers? ``--write FILE`` keeps some for the tests.

    python -m tools.ggml.check --source FOLDER/ggml [--blocks 100000] [--out benchmarks/results/ggml-blocks.json]

Compiles ggml's quantizers without contraction (:mod:`tools.ggml.library`) and rounds random and hostile weights with
both, plain and with importances. Prints for each type the share of equal blocks, and whether all weights are equal.

A block of Q4_1 or Q5_1 has the weights code · d + m. Where d is less than half of the least float16 number it is stored
as 0, and all weights are m, whatever the codes are. ggml stores those that it computed with the d before; goldstick,
whose tensors have no codes that stand for nothing, stores 0. Such codes are left out of the comparison, and how many
blocks have them is said.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch

import goldstick.kernels.ops  # noqa: F401  (registers the compiled fits)
from goldstick.algorithms.ggml.rounding import quantize_as_ggml
from goldstick.formats.gguf_blocks import BLOCK_TYPES, NVFP4, BlockType, pack_blocks
from tools.ggml.library import TYPES, Ggml
from tools.ggml.weights import KINDS, importance_of, rows_of

COLUMNS = 1024
COMPARED = (*BLOCK_TYPES, NVFP4)
#: Share of the blocks of a type that must be equal.
LEAST = 0.999


def main() -> int:
    """Compare; 1 where fewer than 99.9 % of a type's blocks are equal, or a weight is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", type=Path, required=True, help="llama-cpp-python's source package, or a ggml folder"
    )
    parser.add_argument("--blocks", type=int, default=100_000, help="of each type, about")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found")
    parser.add_argument("--write", type=Path, help="keep a few in an .npz file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goldstick-ggml-source-") as folder:
        ggml = Ggml(_unpacked(arguments.source, Path(folder)))
        if arguments.write:
            _write(ggml, arguments.write)
            return 0
        found = {kind.name: _compared(ggml, kind, arguments.blocks) for kind in COMPARED}
    if arguments.out:
        kept = {"kinds of weights": list(KINDS), "types": found}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return any(one["equal"] < LEAST * one["blocks"] or not one["weights_equal"] for one in found.values())


def _unpacked(source: Path, folder: Path) -> Path:
    if source.is_dir():
        return source
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp/ggml"))


def _compared(ggml: Ggml, kind: BlockType, count: int) -> dict[str, int | bool]:
    number, width, nbytes = TYPES[kind.name]
    height = max(1, count * width // COLUMNS // (2 * len(KINDS)))
    total = equal = idle = 0
    values = True
    for seed, name in enumerate(KINDS):
        weight = rows_of(name, seed, height, COLUMNS)
        for importance in (None, importance_of(seed, COLUMNS)):
            theirs, mine = ggml.quantize(kind.name, weight, importance), packed(kind, weight, importance)
            stored = gguf.GGMLQuantizationType(number)
            values &= np.array_equal(*(gguf.quants.dequantize(rows, stored) for rows in (theirs, mine)))
            theirs, mine = theirs.reshape(-1, nbytes), mine.reshape(-1, nbytes)
            dead = _without_meaning(theirs, kind)
            total, idle = total + len(theirs), idle + int(dead.any(1).sum())
            equal += int((np.where(dead, 0, theirs) == np.where(dead, 0, mine)).all(1).sum())
    some = f", {idle} with codes of no meaning" if idle else ""
    weights = "equal" if values else "DIFFER"
    print(f"{kind.name:7s} {100 * equal / total:9.4f} % of {total} blocks equal{some}, weights {weights}", flush=True)
    return {"blocks": total, "equal": equal, "with_codes_of_no_meaning": idle, "weights_equal": values}


def _without_meaning(blocks: np.ndarray, kind: BlockType) -> np.ndarray:
    """Which bytes are codes of blocks whose step is 0 and whose weights are all their minimum, bool [blocks, bytes]."""
    found = np.zeros(blocks.shape, dtype=bool)
    if kind.name in ("Q4_1", "Q5_1"):
        found[:, 4:] = ((blocks[:, 0] == 0) & (blocks[:, 1] & 0x7F == 0))[:, None]
    return found


def packed(kind: BlockType, weight: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """The blocks that goldstick makes of rows, uint8 [rows, bytes of a row]."""
    counts = None if importance is None else torch.from_numpy(importance).reshape(1, -1)
    return pack_blocks(quantize_as_ggml(torch.from_numpy(weight), kind.grid, counts), kind).numpy()


def _write(ggml: Ggml, file: Path) -> None:
    columns = 512
    kept: dict[str, np.ndarray] = {"importance": importance_of(0, columns)}
    kept["weight"] = np.concatenate([rows_of(name, seed, 3, columns) for seed, name in enumerate(KINDS)])
    for kind in COMPARED:
        kept[kind.name] = ggml.quantize(kind.name, kept["weight"])
        kept[f"{kind.name}-importance"] = ggml.quantize(kind.name, kept["weight"], kept["importance"])
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **kept)


if __name__ == "__main__":
    raise SystemExit(main())
