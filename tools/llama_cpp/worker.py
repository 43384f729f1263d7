"""What llama.cpp does, run by a Python that has llama-cpp-python; imports nothing else but numpy.

``worker.py logits FILE OUT IDS`` writes the logits of a row of token ids (with commas between) as float32
[ids, tokens], and ``worker.py states FILE OUT IDS`` the last hidden state of an encoder, [ids, width]; ``worker.py
quantize IN OUT TYPE`` runs llama.cpp's quantizer; ``worker.py tokens FILE TEXT`` prints the ids of a text, and
``worker.py version`` that of llama-cpp-python.
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp
import numpy as np


def logits(file: str, out: str, ids: str) -> None:
    """Write the logits of every position."""
    numbers = [int(number) for number in ids.split(",")]
    model = llama_cpp.Llama(file, n_ctx=len(numbers), n_batch=len(numbers), logits_all=True, verbose=False, n_threads=2)
    model.eval(numbers)
    np.save(out, np.asarray(model.scores[: len(numbers)], dtype=np.float32))


def states(file: str, out: str, ids: str) -> None:
    """Write the last hidden state of every position, of an encoder."""
    numbers = [int(number) for number in ids.split(",")]
    count = len(numbers)
    model = llama_cpp.Llama(
        file,
        n_ctx=count,
        n_batch=count,
        n_ubatch=count,
        embedding=True,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE,
        verbose=False,
        n_threads=2,
    )
    tokens = (llama_cpp.llama_token * count)(*numbers)  # which a batch points to
    if llama_cpp.llama_encode(model.ctx, llama_cpp.llama_batch_get_one(tokens, count)):
        raise SystemExit(f"llama.cpp could not run {file}")
    found = llama_cpp.llama_get_embeddings(model.ctx)
    np.save(out, np.ctypeslib.as_array(found, (count, model.n_embd())).astype(np.float32))


def quantize(source: str, out: str, kind: str, mixed: str = "", importance: str = "") -> None:
    """Write the file that llama.cpp's quantizer makes, every matrix of one type, or a ``mixed`` one by its rules.

    ``importance`` is an .npz file of float32 mean squares, under the names of the file's tensors.
    """
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    settings.pure = not mixed
    settings.nthread = 2
    found = dict(np.load(importance)) if importance else {}
    if found:
        numbers = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in found.items()}
        matrix = (llama_cpp.llama_model_imatrix_data * (len(numbers) + 1))()  # the last, without a name, ends it
        for entry, (name, array) in zip(matrix, numbers.items(), strict=False):
            entry.name, entry.size = name.encode(), array.size
            entry.data = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        settings.imatrix = matrix
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(settings)):
        raise SystemExit(f"llama.cpp could not quantize {source}")


def tokens(file: str, text: str) -> None:
    """Print the ids of a text."""
    model = llama_cpp.Llama(file, vocab_only=True, verbose=False)
    print(",".join(map(str, model.tokenize(text.encode(), add_bos=False, special=True))))


def version() -> None:
    """Print the version."""
    print(llama_cpp.__version__)


if __name__ == "__main__":
    {"logits": logits, "states": states, "quantize": quantize, "tokens": tokens, "version": version}[sys.argv[1]](
        *sys.argv[2:]
    )
