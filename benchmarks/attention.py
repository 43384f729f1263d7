"""Time the attention of one token over a cache, in float and in int8, beside torch's operator, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.attention [--context 2048 8192] [--threads 1] [--clock processor]

Heads are those of TinyLlama (32 over 4, of 64 channels), of Llama 3 8B (32 over 8, of 128) and of Llama 2 7B (32 over
32, of 128). torch's ``scaled_dot_product_attention`` is asked twice, with its own grouping of heads and with keys and
values repeated beforehand, which is not timed; the faster of both is what others are compared with. Each call has one
of several caches in turn, more than the processor's own cache holds. Ratios are medians of the rounds' ratios. Writes
``benchmarks/results/attention.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from goldstick.kernels.attention import attend
from goldstick.pipeline.records import environment

RESULTS = Path(__file__).resolve().parent / "results" / "attention.json"
HEADS = {"TinyLlama": (32, 4, 64), "Llama 3 8B": (32, 8, 128), "Llama 2 7B": (32, 32, 128)}
CACHE = 100 << 20
"""Bytes that no cache of a processor holds."""

Call = Callable[[], object]


def calls(heads: int, kv_heads: int, channels: int, context: int) -> list[dict[str, Call]]:
    """Ways to attend, by name, on several caches."""
    q = torch.randn(1, heads, channels)
    scaling = channels**-0.5
    count = max(2, -(-CACHE // (8 * kv_heads * context * channels)))
    made = []
    for _ in range(count):
        keys, values = (torch.randn(1, kv_heads, context, channels) for _ in range(2))
        many = [states.repeat_interleave(heads // kv_heads, dim=1) for states in (keys, values)]
        codes = [(states * 40).clamp(-127, 127).to(torch.int8) for states in (keys, values)]
        by_channel, by_token = torch.full((kv_heads, channels), 1 / 40), torch.full((1, kv_heads, context), 1 / 40)

        def coded(scale: torch.Tensor, codes: list[torch.Tensor] = codes) -> Call:
            return lambda: attend(q, codes[:1], codes[1:], scaling, [scale], [scale])

        def plain(keys: torch.Tensor, values: torch.Tensor, grouped: bool) -> Call:
            return lambda: F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=grouped)

        def floats(keys: torch.Tensor = keys, values: torch.Tensor = values) -> object:
            return attend(q, [keys], [values], scaling)

        made.append(
            {
                "torch float32, heads grouped": plain(keys, values, True),
                "torch float32, heads repeated": plain(many[0], many[1], False),
                "goldstick float32": floats,
                "goldstick int8, scales by channel": coded(by_channel),
                "goldstick int8, scales by token": coded(by_token),
            }
        )
    return made


def measure(made: list[dict[str, Call]], seconds: float, clock: Callable[[], float]) -> list[dict[str, object]]:
    """A row for each way."""
    times: dict[str, list[float]] = {name: [] for name in made[0]}
    started, place = time.perf_counter(), 0
    while place < 4 or time.perf_counter() - started < seconds:
        for name, call in made[place % len(made)].items():
            start = clock()
            call()
            times[name].append(clock() - start)
        place += 1
    own = {name: values[1:] for name, values in times.items()}  # the first round warms up
    best = [min(pair) for pair in zip(*list(own.values())[:2], strict=True)]
    return [
        {
            "way": name,
            "us": round(statistics.median(values) * 1e6, 1),
            "times_torch": round(statistics.median([a / b for a, b in zip(best, values, strict=True)]), 2),
        }
        for name, values in own.items()
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--context", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="processor: of one thread")
    options = parser.parse_args()
    if options.clock == "processor" and options.threads != 1:
        parser.error("the processor time is that of the calling thread: give --threads 1 with it")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.clock == "processor" else time.perf_counter
    found: dict[str, object] = {}
    for name, (heads, kv_heads, channels) in HEADS.items():
        for context in options.context:
            rows = measure(calls(heads, kv_heads, channels, context), options.seconds, clock)
            found[f"{name}, {context} tokens"] = rows
            print(f"{name}: {heads} heads over {kv_heads} of {channels}, {context} tokens")
            for row in rows:
                print(f"  {row['way']:34} {row['us']:9.1f} µs {row['times_torch']:6.2f} × torch", flush=True)
    settings = {"threads": options.threads, "seconds": options.seconds, "clock": options.clock}
    result = {"settings": settings, "rows": found, "environment": environment()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
