"""Do goldstick's block types have the bytes of ggml's own quantizers? ``--write FILE`` keeps some for the tests.

    python -m tools.ggml.check --source FOLDER/ggml [--blocks 100000]

Compiles ggml's quantizers without contraction (:mod:`tools.ggml.library`) and rounds random and hostile weights with
both, plain and with importances. Prints for each type the share of equal blocks, and of weights that are equal.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch

import goldstick.kernels.ops  # noqa: F401  (registers the compiled fits)
from goldstick.algorithms.ggml.rounding import quantize_as_ggml
from goldstick.formats.gguf_blocks import BLOCK_TYPES, BlockType, pack_blocks
from tools.ggml.library import TYPES, Ggml
from tools.ggml.weights import KINDS, importance_of, rows_of

COLUMNS = 1024


def main() -> int:
    """Compare; 1 where fewer than 99.9 % of a type's blocks are equal.

    Blocks of Q4_1 and Q5_1 whose scale rounds to 0 in float16 stand for their minimum alone, whatever their codes are,
    and goldstick writes none: of these types the weights must be equal.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", type=Path, required=True, help="llama-cpp-python's source package, or a ggml folder"
    )
    parser.add_argument("--blocks", type=int, default=100_000, help="of each type, about")
    parser.add_argument("--write", type=Path, help="keep a few in an .npz file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goldstick-ggml-source-") as folder:
        ggml = Ggml(_unpacked(arguments.source, Path(folder)))
        if arguments.write:
            _write(ggml, arguments.write)
            return 0
        return sum(_differs(ggml, kind, arguments.blocks) for kind in BLOCK_TYPES) > 0


def _unpacked(source: Path, folder: Path) -> Path:
    if source.is_dir():
        return source
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp/ggml"))


def _differs(ggml: Ggml, kind: BlockType, count: int) -> bool:
    _, width, nbytes = TYPES[kind.name]
    rows = max(1, count * width // COLUMNS // (2 * len(KINDS)))
    equal = total = 0
    values = True
    for seed, name in enumerate(KINDS):
        weight = rows_of(name, seed, rows, COLUMNS)
        for importance in (None, importance_of(seed, COLUMNS)):
            theirs, mine = ggml.quantize(kind.name, weight, importance), packed(kind, weight, importance)
            same = (theirs.reshape(-1, nbytes) == mine.reshape(-1, nbytes)).all(1)
            equal, total = equal + int(same.sum()), total + len(same)
            number = gguf.GGMLQuantizationType[kind.name]
            values &= np.array_equal(gguf.quants.dequantize(theirs, number), gguf.quants.dequantize(mine, number))
    weights = "equal" if values else "DIFFER"
    print(f"{kind.name:7s} {100 * equal / total:9.4f} % of {total} blocks equal, weights {weights}")
    return not values if kind.name in ("Q4_1", "Q5_1") else equal < 0.999 * total


def packed(kind: BlockType, weight: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """The blocks that goldstick makes of rows, uint8 [rows, bytes of a row]."""
    counts = None if importance is None else torch.from_numpy(importance).reshape(1, -1)
    return pack_blocks(quantize_as_ggml(torch.from_numpy(weight), kind.grid, counts), kind).numpy()


def _write(ggml: Ggml, file: Path) -> None:
    columns = 512
    kept: dict[str, np.ndarray] = {"importance": importance_of(0, columns)}
    kept["weight"] = np.concatenate([rows_of(name, seed, 3, columns) for seed, name in enumerate(KINDS)])
    for kind in BLOCK_TYPES:
        kept[kind.name] = ggml.quantize(kind.name, kept["weight"])
        kept[f"{kind.name}-importance"] = ggml.quantize(kind.name, kept["weight"], kept["importance"])
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **kept)


if __name__ == "__main__":
    raise SystemExit(main())
