"""What plain transformers answers: ``PYTHON transformers_worker.py SPEC.json``, with the packages that its Python has.

Writes what ``vllm_worker.py`` writes. Nothing of goldstick is imported.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from worker_loop import go_through


@torch.inference_mode()
def answered(directory: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What one checkpoint gives."""
    torch.set_num_threads(spec.get("threads", 1))
    started = time.perf_counter()
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    loaded = time.perf_counter() - started
    ids = torch.tensor(spec["ids"][Path(directory).parent.name])
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float()
    told = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    result = {"logprobs": told.tolist(), "seconds_to_load": loaded, "dtype": str(model.dtype)}
    if spec.get("decoded"):
        result["tokens_s"] = speed(model, ids[:1], spec["decoded"])
    return result


def speed(model: Any, ids: torch.Tensor, count: int) -> float:
    """Greedy tokens a second of processor time of one sequence, the best of three."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
        seconds.append(time.process_time() - started)
    return count / min(seconds)


if __name__ == "__main__":
    go_through(answered)
