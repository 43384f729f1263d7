"""What llama.cpp answers: ``PYTHON llama_cpp_worker.py SPEC.json``, by a Python that has llama-cpp-python.

Writes what ``vllm_worker.py`` writes. Nothing of goldstick is imported.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from worker_loop import go_through


def answered(directory: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What one file gives."""
    started = time.perf_counter()
    file = str(Path(directory) / "model.gguf")
    length = spec.get("length", 128)
    model = llama_cpp.Llama(
        file, n_ctx=length, n_batch=128, logits_all=True, verbose=False, n_threads=spec.get("threads", 1)
    )
    loaded = time.perf_counter() - started
    rows = []
    ids = spec["ids"][Path(directory).parent.name]
    for row in ids:
        model.reset()
        model.eval(row)
        logits = np.asarray(model.scores[: len(row) - 1], dtype=np.float64)
        logits -= logits.max(-1, keepdims=True)
        told = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        rows.append([float(told[place, token]) for place, token in enumerate(row[1:])])
    result = {"logprobs": rows, "seconds_to_load": loaded, "dtype": "float32"}
    if spec.get("decoded"):
        model.close()
        model = llama_cpp.Llama(file, n_ctx=length, n_batch=128, verbose=False, n_threads=spec.get("threads", 1))
        result["tokens_s"] = speed(model, ids[0], spec["decoded"])
    return result


def speed(model: Any, ids: list[int], count: int) -> float:
    """Greedy tokens a second of processor time of one sequence, the best of three, its prompt read each time."""
    seconds = []
    for _ in range(3):
        model.reset()
        started = time.process_time()
        for _, _token in zip(range(count), model.generate(ids, top_k=1, temp=0.0, reset=True), strict=False):
            pass
        seconds.append(time.process_time() - started)
    return count / min(seconds)


if __name__ == "__main__":
    go_through(answered)
