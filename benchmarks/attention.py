"""Time the attention of one token over a cache of floats and of codes, beside torch's operator, interleaved.

    OMP_NUM_THREADS=2 python -m benchmarks.attention [--context 2048 8192] [--threads 2]

Heads are those of TinyLlama (32 over 4, of 64 channels), of Llama 3 8B (32 over 8, of 128) and of Llama 2 7B (32 over
32, of 128). torch's ``scaled_dot_product_attention`` is asked twice, with its own grouping of heads and with keys and
values repeated beforehand, which is not timed; the faster of both is what others are compared with. Before each call
memory is read until no cache of the machine holds what the last one left. Of one thread processor time counts. Ratios
are medians of the rounds' ratios. Writes ``benchmarks/results/attention.json``.
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

from goldstick.core.kv_cache import KVDtype
from goldstick.jobs.bench.stopwatch import PlainRead, seconds_of
from goldstick.jobs.save.records import environment
from goldstick.kernels.attention import attend
from goldstick.nn.kv_cache import QuantizedStates

RESULTS = Path(__file__).resolve().parent / "results" / "attention.json"
HEADS = {"TinyLlama": (32, 4, 64), "Llama 3 8B": (32, 8, 128), "Llama 2 7B": (32, 32, 128)}
Call = Callable[[], object]


def calls(heads: int, kv_heads: int, channels: int, context: int) -> dict[str, Call]:
    """Ways to attend, by name."""
    q = torch.randn(1, heads, channels)
    scaling = channels**-0.5
    keys, values = (torch.randn(1, kv_heads, context, channels) for _ in range(2))
    many = [states.repeat_interleave(heads // kv_heads, dim=1) for states in (keys, values)]
    by_channel, by_token = torch.full((kv_heads, channels), 1 / 40), torch.full((1, kv_heads, context), 1 / 40)
    int8 = [(states * 40).clamp(-127, 127).to(torch.int8) for states in (keys, values)]

    def coded(codes: list[torch.Tensor], scale: torch.Tensor) -> Call:
        return lambda: attend(q, codes[:1], codes[1:], scaling, [scale], [scale])

    def stored(dtype: KVDtype, rotate: bool) -> Call:
        stores = [QuantizedStates(states, None, dtype=dtype, rotate=rotate) for states in (keys, values)]
        for store, states in zip(stores, (keys, values), strict=True):
            store.append(states)
        (coded_keys, key_scales), (coded_values, value_scales) = (store.runs() for store in stores)
        turned = stores[0].turned
        return lambda: attend(q, coded_keys, coded_values, scaling, key_scales, value_scales, turned)

    def plain(keys: torch.Tensor, values: torch.Tensor, grouped: bool) -> Call:
        return lambda: F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=grouped)

    return {
        "torch float32, heads grouped": plain(keys, values, True),
        "torch float32, heads repeated": plain(*many, False),
        "goldstick float32": lambda: attend(q, [keys], [values], scaling),
        "goldstick int8, scales by channel": coded(int8, by_channel),
        "goldstick int8, scales by token": coded(int8, by_token),
        "goldstick FP8, scales by token": stored("fp8", False),
        "goldstick int4": stored("int4", False),
        "goldstick int4, rotated": stored("int4", True),
    }


def measure(ways: dict[str, Call], seconds: float, read: PlainRead) -> list[dict[str, object]]:
    """A row for each way; before each call memory is read that leaves no cache as it was."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    started, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - started < seconds:
        for name, call in ways.items():
            read.bytes_per_second()
            times[name].append(seconds_of(call))
        rounds += 1
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
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    read = PlainRead()
    found: dict[str, object] = {}
    for name, (heads, kv_heads, channels) in HEADS.items():
        for context in options.context:
            rows = measure(calls(heads, kv_heads, channels, context), options.seconds, read)
            found[f"{name}, {context} tokens"] = rows
            print(f"{name}: {heads} heads over {kv_heads} of {channels}, {context} tokens")
            for row in rows:
                print(f"  {row['way']:34} {row['us']:9.1f} µs {row['times_torch']:6.2f} × torch", flush=True)
    settings = {"threads": options.threads, "seconds": options.seconds}
    result = {"settings": settings, "rows": found, "environment": environment()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
