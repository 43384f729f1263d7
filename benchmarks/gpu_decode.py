"""Time whole models on a CUDA device, quantized beside bfloat16: tokens of a step, and a prompt.

    python -m benchmarks.gpu_decode [--blocks 8] [--schemes w4a16-g128 w8a16] [--steps 50]

The model has the shape of Llama 3.1 8B with a part of its 32 blocks and random weights. A step is the blocks, the last
norm and the head for the next token of each of so many sequences, without a cache: what reads weights, and no more.
Steps are captured as one CUDA graph and replayed; ``eager`` is the same called from Python. Every scheme is run by the
backend that goldstick chooses and by the reference, and their outputs are compared. All times are medians of one run.

Writes ``benchmarks/results/gpu_decode.json``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.hf.random_models import float_llama, llama_config, quantized_llama
from goldstick.jobs.save.records import environment

RESULTS = Path(__file__).resolve().parent / "results" / "gpu_decode.json"
SHAPE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
SCHEMES = ("w4a16-g128", "w4a16-g32", "w8a16", "w8a8-dynamic", "w4a8-dynamic-g128")
SEQUENCES = (1, 16, 64)
PROMPT = 512
FLOAT, CHOSEN, REFERENCE = "bfloat16", "chosen", "reference"
ALLOWED = 0.1
"""How far logits of two backends may be apart, of their length; with inputs rounded to 8 bits three times that."""


def step_of(model: Any) -> Callable[[Tensor], Tensor]:
    """Embeds ids [sequences, tokens] and gives the logits of the last."""
    inner = model.model

    def run(ids: Tensor) -> Tensor:
        hidden = inner.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        angles = inner.rotary_emb(hidden, positions)
        for block in inner.layers:
            hidden = block(hidden, position_embeddings=angles, attention_mask=None)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        logits: Tensor = model.lm_head(inner.norm(hidden[:, -1]))
        return logits

    return run


def milliseconds(call: Callable[[], object], steps: int) -> float:
    """The median by the device's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(one.elapsed_time(other) for one, other in itertools.pairwise(marks))


def timed(step: Callable[[Tensor], Tensor], ids: Tensor, steps: int) -> dict[str, float]:
    """Replayed as a graph, and called from Python."""
    for _ in range(3):  # the first compiles
        step(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(ids)
    return {
        "graph_ms": round(milliseconds(graph.replay, steps), 4),
        "eager_ms": round(milliseconds(lambda: step(ids), max(3, steps // 5)), 4),
    }


@torch.no_grad()
def measure(name: str, blocks: int, steps: int) -> list[dict[str, Any]]:
    """Rows of one scheme, or of bfloat16: a row for each backend."""
    config = llama_config(**SHAPE, num_hidden_layers=blocks)
    made = float_llama(config, torch.bfloat16) if name == FLOAT else quantized_llama(config, name)
    model = made.to("cuda", torch.bfloat16)
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    step, rows, before = step_of(model), [], None
    for backend in (FLOAT,) if name == FLOAT else (CHOSEN, REFERENCE):
        os.environ.pop("GOLDSTICK_BACKEND", None)
        if backend == REFERENCE:
            os.environ["GOLDSTICK_BACKEND"] = REFERENCE
        row: dict[str, Any] = {"scheme": name, "backend": backend, "bytes": size}
        cases = {f"{count} sequences": (count, 1) for count in SEQUENCES} | {f"prompt of {PROMPT}": (1, PROMPT)}
        found = {}
        for case, shape in cases.items():
            ids = torch.randint(0, SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(0)).cuda()
            found[case] = step(ids).float()
            row[case] = timed(step, ids, steps)
        if before is not None:
            row["apart"] = {case: apart(before[case], found[case]) for case in cases}
            allowed = ALLOWED * (3 if "a8" in name else 1)
            if (worst := max(row["apart"].values())) > allowed:
                raise SystemExit(f"{name}: two backends are {worst:.2g} of their length apart")
        before = found
        rows.append(row)
        print(json.dumps(row), flush=True)
    del model, made, step
    gc.collect()
    torch.cuda.empty_cache()
    return rows


def apart(one: Tensor, other: Tensor) -> float:
    """|a − b| / |b|."""
    return float((one - other).norm() / other.norm())


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit(
            "This times models on a CUDA device, and torch finds none; benchmarks/decode.py times processors."
        )
    rows = [row for name in (FLOAT, *options.schemes) for row in measure(name, options.blocks, options.steps)]
    found = {"device": torch.cuda.get_device_name(0), "blocks": options.blocks, "rows": rows}
    found["environment"] = environment()
    options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
