"""Tokens a second of whole networks with random weights, one token at a time and over a prompt, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.decode [--shape 1.1B] [--what decode] [--threads 1] [--clock processor]
    OMP_NUM_THREADS=2 python -m benchmarks.decode --threads 2 --what decode prefill --llama-cpp PYTHON

Each network takes its turn in every round: some tokens of decoding, or one pass over the prompt. A busy machine slows
all of them; with one thread, its own processor time tells more than the clock on the wall. Figures are medians, ratios
are medians of the rounds' ratios. The same loop drives all transformers models: a forward, the likeliest token.

``goldstick … optimized`` went through ``goldstick.optimize``; what that found is printed. ``torch dynamic int8`` is
torch.ao's, on FBGEMM. llama.cpp runs in a process of its own, from a Python that has ``llama-cpp-python``, on a file
of the same shape in Q4_0; it is timed around its evaluation alone. Writes ``benchmarks/results/decode.json``, an entry
for each shape and number of blocks and threads; other entries stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from benchmarks.llama_cpp_decode import LlamaCpp, random_file
from benchmarks.random_llama import SHAPES, config
from goldstick.hf.random_models import float_llama, quantized_llama
from goldstick.jobs.optimize.optimize import optimize
from goldstick.jobs.save.records import environment

RESULTS = Path(__file__).resolve().parent / "results" / "decode.json"
CONTEXT = 64
BASELINE = "transformers float32"

Clock = Callable[[], float]


class Network(Protocol):
    """Something that decodes."""

    def decode(self, tokens: int) -> float:
        """Seconds for some tokens more."""

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt."""


class InProcess:
    """A transformers model, or what has become of one."""

    def __init__(self, model: Any, clock: Clock) -> None:
        self.model, self.clock = model, clock
        self.cache: Any = None
        self.token = torch.zeros(1, 1, dtype=torch.long)

    def _step(self, ids: Tensor, cache: Any) -> Tensor:
        output = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        chosen: Tensor = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        return chosen

    @torch.no_grad()
    def decode(self, tokens: int) -> float:
        """Seconds for some tokens more; the first call reads a short prompt before."""
        if self.cache is None:
            self.cache = DynamicCache(config=self.model.config)
            self.token = self._step(prompt(CONTEXT), self.cache)
        start = self.clock()
        for _ in range(tokens):
            self.token = self._step(self.token, self.cache)
        return self.clock() - start

    @torch.no_grad()
    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt."""
        cache = DynamicCache(config=self.model.config)
        start = self.clock()
        self._step(prompt(tokens), cache)
        return self.clock() - start


def prompt(tokens: int) -> Tensor:
    """The same ids every time."""
    return torch.randint(0, 32000, (1, tokens), generator=torch.Generator().manual_seed(0))


def dynamic_int8(shape: str, layers: int | None) -> Any:
    """torch.ao's dynamic int8 with random weights."""
    model = quantized_llama(config(shape, layers), "w8a8-dynamic")
    for path, module in list(model.named_modules()):
        if hasattr(module, "weight_packed"):
            made: Any = torch.ao.nn.quantized.dynamic.Linear(module.in_features, module.out_features, bias_=False)
            weight = torch.randn(module.out_features, module.in_features).mul_(0.02)
            made.set_weight_bias(torch.quantize_per_tensor(weight, 0.0005, 0, torch.qint8), None)
            owner, _, name = path.rpartition(".")
            setattr(model.get_submodule(owner), name, made)
    return model


def networks(options: argparse.Namespace, clock: Clock) -> Iterator[tuple[str, Network]]:
    """Name and network, one at a time."""
    given = config(options.shape, options.layers)
    yield BASELINE, InProcess(float_llama(given), clock)
    if not options.without_bfloat16:
        yield "transformers bfloat16", InProcess(float_llama(given, torch.bfloat16), clock)
    for label, scheme in (("W4 g128", "w4a16-g128"), ("W8A8", "w8a8-dynamic")):
        yield f"goldstick {label}", InProcess(quantized_llama(given, scheme), clock)
        model: nn.Module = quantized_llama(given, scheme)
        started = time.perf_counter()
        print(
            f"goldstick {label} optimized: {optimize(model)}\n  in {time.perf_counter() - started:.1f} s".replace(
                "\n", "\n  "
            )
        )
        yield f"goldstick {label} optimized", InProcess(model, clock)
    yield "torch dynamic int8", InProcess(dynamic_int8(options.shape, options.layers), clock)
    if options.llama_cpp:
        yield "llama.cpp Q4_0", LlamaCpp(options.llama_cpp, random_file(given), options.threads, options.clock)


def measure(found: dict[str, Network], what: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each network."""
    tokens = options.prompt if what == "prefill" else options.tokens
    times: dict[str, list[float]] = {name: [] for name in found}
    for place in range(options.rounds + 1):  # the first round warms up
        for name, network in found.items():
            seconds = getattr(network, what)(tokens)
            if place:
                times[name].append(seconds)
    rows = []
    for name, own in times.items():
        ratios = [a / b for a, b in zip(times[BASELINE], own, strict=True)]
        row = {
            "network": name,
            "tokens_s": round(tokens / statistics.median(own), 2),
            "ms": [round(seconds * 1e3, 2) for seconds in own],
            "times_float32": round(statistics.median(ratios), 3),
        }
        plain = times.get(name.removesuffix(" optimized"))
        if plain is not None and plain is not own:
            row["times_unoptimized"] = round(statistics.median([a / b for a, b in zip(plain, own, strict=True)]), 3)
        rows.append(row)
    print(f"{what}, {tokens} tokens, {options.rounds} rounds, {options.threads} threads, {options.clock} time")
    for row in rows:
        line = f"  {row['network']:30} {row['tokens_s']:9.2f} tokens/s {row['times_float32']:7.2f} × float32"
        print(line + (f" {row['times_unoptimized']:6.3f} × unoptimized" if "times_unoptimized" in row else ""))
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="1.1B")
    parser.add_argument("--layers", type=int, help="fewer blocks: the ratios of a prompt without the time")
    parser.add_argument("--what", nargs="+", choices=["decode", "prefill"], default=["decode"])
    parser.add_argument("--tokens", type=int, default=8, help="decoded by each network in each round")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="processor: of one thread")
    parser.add_argument("--without-bfloat16", action="store_true", help="it may take minutes over a prompt")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="a Python that has llama-cpp-python")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results, where other entries stay")
    options = parser.parse_args()
    if options.clock == "processor" and options.threads != 1:
        parser.error("the processor time is that of the calling thread: give --threads 1 with it")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.clock == "processor" else time.perf_counter
    found = dict(networks(options, clock))
    rows = {what: measure(found, what, options) for what in options.what}
    label = f"{options.shape}, {found[BASELINE].model.config.num_hidden_layers} blocks, {options.threads} threads"  # type: ignore[attr-defined]
    results = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    settings = {"clock": options.clock, "rounds": options.rounds, "tokens": options.tokens, "prompt": options.prompt}
    entry = results.get(label, {}) | rows
    results[label] = entry | {"settings": settings, "environment": environment()}
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
