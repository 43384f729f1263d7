"""What vLLM answers: ``PYTHON vllm_worker.py SPEC.json``, by a Python that has vLLM. Nothing of goldstick is imported.

For each of ``checkpoints`` a line of JSON: the log-probability of every token of every row of ``ids`` but the first,
and of ``decoded`` greedy ones how many there are in a second of processor time, which changes little where others use
the machine; or the error it ended with. A line that begins comes first, so that whoever reads knows where a process
died.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams
from worker_loop import go_through


def answered(directory: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What one checkpoint gives."""
    torch.set_num_threads(spec.get("threads", 1))
    started = time.perf_counter()
    model = LLM(
        model=directory,
        skip_tokenizer_init=True,
        enforce_eager=True,
        disable_log_stats=True,
        max_model_len=spec.get("length", 128),
        max_num_seqs=2,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
        dtype=spec.get("dtype", "auto"),
    )
    loaded = time.perf_counter() - started
    prompts: Any = [{"prompt_token_ids": row} for row in spec["ids"][Path(directory).parent.name]]
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    rows = []
    for prompt, output in zip(prompts, model.generate(prompts, asked, use_tqdm=False), strict=True):
        told = output.prompt_logprobs[1:]
        rows.append([step[token].logprob for step, token in zip(told, prompt["prompt_token_ids"][1:], strict=True)])
    result = {"logprobs": rows, "seconds_to_load": loaded, "dtype": str(model.llm_engine.model_config.dtype)}
    if spec.get("decoded"):
        result["tokens_s"] = speed(model, prompts[0], spec["decoded"])
    return result


def speed(model: Any, prompt: Any, count: int) -> float:
    """Greedy tokens a second of processor time of one sequence, the best of three."""
    asked = SamplingParams(max_tokens=count, min_tokens=count, temperature=0.0, ignore_eos=True, detokenize=False)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        model.generate([prompt], asked, use_tqdm=False)
        seconds.append(time.process_time() - started)
    return count / min(seconds)


if __name__ == "__main__":
    go_through(answered)
