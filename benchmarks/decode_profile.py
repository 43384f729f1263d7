"""Where the milliseconds of a decoded token go, in a model that ``goldstick.optimize`` rearranged.

    OMP_NUM_THREADS=2 python -m benchmarks.decode_profile FOLDER [--threads 2] [--rounds 9]

Three things are timed by turns, of which the medians are printed: whole tokens, as the model gives them; within these,
what runs in C++ and what Python does around it; and each kind of product alone, in the network's order, so that its
weights come from memory as in a token. ``between`` is the rest of the blocks in C++: norms, rotation, attention, gates.
The floor is a plain read of as many bytes as the file has without the embedding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import goldstick
from benchmarks.decode import InProcess
from goldstick.checkpoint.gguf.shards import read_model
from goldstick.formats.gguf import GGUF_NAME
from goldstick.kernels import cpu
from goldstick.nn import QuantizedLinear
from goldstick.nn.fused.decode_block import FusedDecodeBlock

RESULTS = Path(__file__).resolve().parent / "results" / "decode-profile.json"


_BESIDE = ("between", "guards and Python of the blocks", "embedding", "the model's Python", "sampling")


class Clock:
    """Seconds of functions by name, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts."""

        def run(*args: Any, **given: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **given)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return run


def products(model: Any) -> Iterator[tuple[str, QuantizedLinear]]:
    """Every product of a token in the network's order, with the name of its kind."""
    forwards = [module.__dict__.get("forward") for module in model.modules()]
    for block in (forward for forward in forwards if isinstance(forward, FusedDecodeBlock)):
        query, gate = block.attention.query.shared, block.feed.gate.shared
        assert query is not None and gate is not None
        yield from (("query, key, value", whole) for whole in query.wholes())
        yield "attention's output", block.attention.output  # type: ignore[misc]
        yield from (("gate, up", whole) for whole in gate.wholes())
        yield "down", block.feed.down  # type: ignore[misc]
    yield "head", model.get_output_embeddings()


def once(layer: QuantizedLinear, threads: int) -> float:
    """Seconds of a product with one token."""
    ready, dtype = layer.ready(), layer.weight_scale.dtype
    x, y = torch.randn(1, layer.in_features).to(dtype), torch.empty(1, layer.out_features, dtype=dtype)
    start = time.perf_counter()
    ready.run(x.data_ptr(), y.data_ptr(), 1, threads)
    return time.perf_counter() - start


def watch(model: Any, clock: Clock) -> None:
    """Let the clock count what a token runs through."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, FusedDecodeBlock):
            module.forward = clock.timed("blocks", forward)
            forward.follows = partial(_follows, forward, forward.follows)  # type: ignore[method-assign]
    compiled: Any = cpu._C
    compiled.run_blocks = clock.timed("blocks in C++", compiled.run_blocks)
    for name, module in (
        ("head", model.get_output_embeddings()),
        ("embedding", model.get_input_embeddings()),
        ("decoder", model.get_decoder()),
        ("model", model),
    ):
        module.forward = clock.timed(name, module.forward)


def _follows(block: FusedDecodeBlock, old: Callable[[FusedDecodeBlock], bool], other: FusedDecodeBlock) -> bool:
    """Whether it follows another, were its module's forward not a clock's."""
    timed, block.module.__dict__["forward"] = block.module.__dict__["forward"], block
    try:
        return old(other)
    finally:
        block.module.__dict__["forward"] = timed


def profile(folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a token by what they are spent on, medians of rounds."""
    model: Any = goldstick.load(folder)
    goldstick.optimize(model)
    found: dict[str, list[float]] = defaultdict(list)
    kinds = [(f"{kind}, {layer.scheme.label}", layer) for kind, layer in products(model)]
    tensors = read_model(folder / GGUF_NAME).tensors
    stored = sum(tensor.nbytes for name, tensor in tensors.items() if name != "token_embd.weight")
    words = torch.randint(0, 1 << 30, (stored // 4096, 1024), dtype=torch.int32)
    network, clock = InProcess(model, time.perf_counter), Clock()
    network.decode(8)
    watch(model, clock)
    for _ in range(rounds):
        clock.seconds.clear()
        found["token"].append(network.decode(8) / 8)
        for name, value in clock.seconds.items():
            found[name].append(value / 8)
        alone: dict[str, float] = defaultdict(float)
        for name, layer in kinds:
            alone[name] += once(layer, threads)
        for name, value in alone.items():
            found[name].append(value)
        start = time.perf_counter()
        cpu._C.read_words(words, threads)
        found["floor"].append(time.perf_counter() - start)
        spent = {name: value / 8 for name, value in clock.seconds.items()}
        products_of_blocks = sum(value for name, value in alone.items() if not name.startswith("head"))
        found["between"].append(spent["blocks in C++"] - products_of_blocks)
        found["guards and Python of the blocks"].append(spent["blocks"] - spent["blocks in C++"])
        outside = spent["model"] - spent["blocks"] - spent["embedding"] - spent["head"]
        found["the model's Python"].append(outside)
        found["sampling"].append(found["token"][-1] - spent["model"])
    medians = {name: 1e3 * statistics.median(values) for name, values in found.items()}
    kept = [*dict.fromkeys(name for name, _ in kinds), *_BESIDE]
    table = {name: medians[name] for name in kept}
    return {
        "token_ms": round(medians["token"], 2),
        "blocks_in_cpp_ms": round(medians["blocks in C++"], 2),
        "floor_ms": round(medians["floor"], 2),
        "ms": {name: round(value, 3) for name, value in table.items()},
        "threads": threads,
        "isa": cpu.chosen_isa(),
    }


def main() -> None:
    """Print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a model quantized to GGUF")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = profile(options.folder, options.threads, options.rounds)
    for name, value in found["ms"].items():
        print(f"{name:40} {value:7.3f} ms")
    print(f"{'a token':40} {found['token_ms']:7.3f} ms; a plain read of its weights {found['floor_ms']} ms")
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results[options.folder.name] = found
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
