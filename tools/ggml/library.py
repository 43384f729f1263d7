"""ggml's quantizers as a library of their own, compiled without contraction from llama.cpp's sources.

Fused multiply-adds round once where two operations round twice, and turn ties: without them every block is the same on
every machine, and the same as goldstick's.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

#: ggml type → (its number, weights of a block, bytes of a block).
TYPES = {
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
}
_FUNCTION = {name: "quantize_" + name.lower().replace("_k", "_K") for name in TYPES}

# What the file of quantizers takes from the rest of ggml.
_REST = """
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
size_t ggml_row_size(int type, int64_t n) {
    switch (type) {
%s
    }
    abort();
}
size_t ggml_type_size(int type) { (void)type; abort(); }
const char * ggml_type_name(int type) { (void)type; return ""; }
void ggml_abort(const char * file, int line, const char * what, ...) { (void)file; (void)line; (void)what; abort(); }
"""


class Ggml:
    """The quantizers of a source tree of llama.cpp.

    Args:
        source: Its folder ``ggml``.
        compiler: A C compiler.
    """

    def __init__(self, source: Path, compiler: str = "cc") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="goldstick-ggml-")
        folder = Path(self._folder.name)
        cases = [f"    case {number}: return n / {width} * {nbytes};" for number, width, nbytes in TYPES.values()]
        (folder / "rest.c").write_text(_REST % "\n".join(cases))
        library = folder / "quantizers.so"
        flags = ["-O2", "-DNDEBUG", "-ffp-contract=off", "-fPIC", "-shared", "-std=c11", "-D_GNU_SOURCE"]
        paths = [f"-I{source / 'include'}", f"-I{source / 'src'}"]
        files = [str(source / "src" / "ggml-quants.c"), str(folder / "rest.c")]
        subprocess.run([compiler, *flags, *paths, *files, "-o", str(library), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))

    def quantize(self, name: str, rows: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
        """The blocks of rows, uint8 [rows, bytes of a row].

        Args:
            name: The ggml type.
            rows: float32 [rows, in].
            importance: float32 [in], or ``None``.
        """
        _, width, nbytes = TYPES[name]
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        blocks = np.zeros((len(rows), rows.shape[1] // width * nbytes), dtype=np.uint8)
        counts = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
        call = getattr(self._library, _FUNCTION[name])
        call.restype = ctypes.c_size_t
        pointer = ctypes.c_void_p
        call(
            pointer(rows.ctypes.data), pointer(blocks.ctypes.data), ctypes.c_int64(len(rows)),
            ctypes.c_int64(rows.shape[1]), pointer(None if counts is None else counts.ctypes.data),
        )  # fmt: skip
        return blocks
