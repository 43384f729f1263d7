"""What sentence-transformers answers: ``PYTHON sentence_transformers_worker.py SPEC.json``. No goldstick is imported.

For each checkpoint the embeddings of ``texts``, of length 1, and milliseconds of processor time for a text, the best
of three; or the error. Where it ends with an error as it is loaded, which is kept, the model within is called once and
it is tried again: sentence-transformers calls ``forward`` itself, past the hook that decompresses the weights.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from worker_loop import go_through


def answered(directory: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What one encoder gives."""
    torch.set_num_threads(spec.get("threads", 1))
    started = time.perf_counter()
    model = SentenceTransformer(directory, device="cpu", local_files_only=True)
    loaded = time.perf_counter() - started
    told: dict[str, Any] = {}
    try:
        model.encode(spec["texts"][:1], show_progress_bar=False)
    except Exception as error:  # whatever a program raises is its answer
        told["error_as_loaded"] = f"{type(error).__name__}: {error}"
        inputs = model.tokenizer(["once"], return_tensors="pt")
        with torch.inference_mode():
            model[0].auto_model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    seconds = []
    for _ in range(3):
        started = time.process_time()
        found = model.encode(spec["texts"], batch_size=8, normalize_embeddings=True, show_progress_bar=False)
        seconds.append(time.process_time() - started)
    parts = [type(module).__name__ for module in model]
    milliseconds = 1000 * min(seconds) / len(spec["texts"])
    dtype = str(next(iter(model.parameters())).dtype)
    return {"embeddings": found.tolist(), "seconds_to_load": loaded, "milliseconds": milliseconds, "modules": parts,
            "dtype": dtype, **told}  # fmt: skip


if __name__ == "__main__":
    go_through(answered)
