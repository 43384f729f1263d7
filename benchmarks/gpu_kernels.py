"""Time the Triton kernels on a CUDA device beside torch's linear layer and torch's int4 kernel.

    python benchmarks/gpu_kernels.py [--shapes 4096x4096] [--tokens 1 16] [--dtype bfloat16] [--milliseconds 200]

Before a kernel of goldstick is timed, its result is compared with the reference; a wrong one ends the run. Each kernel
is called on several copies of its weight in turn, more than the device's cache holds. Those calls are captured as one
CUDA graph and replayed, so that ``us`` is the device's time alone; ``eager`` is that of the same calls from Python. All
kernels take turns, and times are medians. ``of memory`` is the rate at which a kernel goes through its weight (codes,
scales, zeros), as a share of what the device reaches in copying 1 GiB or in adding it up, whichever is faster.

Writes ``benchmarks/results/gpu_kernels.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from goldstick.core.bitpack import pack_rows
from goldstick.core.scheme import NUMBER_FORMATS
from goldstick.jobs.save.records import environment
from goldstick.kernels import Activation, WeightSpec
from goldstick.kernels.reference import ReferenceBackend
from goldstick.kernels.scaled_mm import ScaledMmBackend
from goldstick.kernels.triton import TritonBackend

RESULTS = Path(__file__).resolve().parent / "results" / "gpu_kernels.json"
MEMORY_BUFFER = 1 << 30
LARGEST_ERROR = 5e-5
"""Of the outputs' squared length, what a 16-bit kernel may be wrong by."""

Call = Callable[[torch.Tensor], object]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Something that multiplies inputs [tokens, in] by a weight, of which there are several copies.

    Attributes:
        calls: One for each copy.
        weight_bytes: What one call reads of the weight.
    """

    calls: list[Call]
    weight_bytes: int


def copies(weight_bytes: int) -> range:
    """As many as hold four times what the device's cache does."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return range(max(2, -(-4 * cache // weight_bytes)))


def goldstick_kernel(
    rows: int, columns: int, bits: int, group_size: int, activation: Activation, dtype: torch.dtype
) -> Kernel:
    """The Triton backend on a symmetric weight, compared with the reference first."""
    spec = WeightSpec(
        bits=bits,
        group_size=group_size,
        in_features=columns,
        out_features=rows,
        has_zero=False,
        dtype=dtype,
        activation=activation,
    )
    backend = TritonBackend()
    if reason := backend.supports(spec, torch.device("cuda", 0)):
        raise SystemExit(f"The Triton backend does not run here: {reason}.")
    packed = pack_rows(torch.randint(0, 2**bits, (rows, columns), dtype=torch.uint8), bits).cuda()
    scale = torch.rand(rows, spec.groups, device="cuda").to(dtype) / 100
    for tokens in (1, 16, 100):
        x = torch.randn(tokens, columns, device="cuda", dtype=dtype)
        exact = ReferenceBackend().linear(x, packed, scale, None, None, spec).double()
        error = (backend.linear(x, packed, scale, None, None, spec).double() - exact).square().sum()
        if not error <= LARGEST_ERROR * exact.square().sum():
            raise SystemExit(f"{tokens} tokens on {spec} give a wrong result: it is not timed.")

    def call(packed: torch.Tensor, scale: torch.Tensor) -> Call:
        return lambda x: backend.linear(x, packed, scale, None, None, spec)

    weight_bytes = packed.nbytes + scale.nbytes
    return Kernel(calls=[call(packed.clone(), scale.clone()) for _ in copies(weight_bytes)], weight_bytes=weight_bytes)


def dequantized(rows: int, columns: int, dtype: torch.dtype, backend: ReferenceBackend | TritonBackend) -> Kernel:
    """A symmetric 4-bit weight in groups of 128 that a backend turns into floats, which torch multiplies."""
    spec = WeightSpec(
        bits=4, group_size=128, in_features=columns, out_features=rows, has_zero=False, dtype=dtype, activation=None
    )
    packed = pack_rows(torch.randint(0, 16, (rows, columns), dtype=torch.uint8), 4).cuda()
    scale = torch.rand(rows, spec.groups, device="cuda").to(dtype) / 100

    def call(packed: torch.Tensor, scale: torch.Tensor) -> Call:
        return lambda x: F.linear(x, backend.dequantize(packed, scale, None, spec))

    weight_bytes = packed.nbytes + scale.nbytes
    return Kernel(calls=[call(packed.clone(), scale.clone()) for _ in copies(weight_bytes)], weight_bytes=weight_bytes)


def torch_fp8(rows: int, columns: int, dtype: torch.dtype) -> Kernel:
    """torch's FP8 product by the backend ``scaled-mm``, with inputs rounded token by token."""
    spec = WeightSpec(
        bits=8, group_size=columns, in_features=columns, out_features=rows, has_zero=False, dtype=dtype,
        activation=str(NUMBER_FORMATS["fp8-dynamic"][1].input_name), element="e4m3",  # type: ignore[union-attr]
    )  # fmt: skip
    backend, weight_bytes = ScaledMmBackend(), rows * columns + 2 * rows

    def call() -> Call:
        codes = (torch.randn(rows, columns, device="cuda") / 4).to(torch.float8_e4m3fn).view(torch.int32)
        scale = torch.rand(rows, 1, device="cuda").to(dtype)
        return lambda x: backend.linear(x, codes, scale, None, None, spec)

    return Kernel(calls=[call() for _ in copies(weight_bytes)], weight_bytes=weight_bytes)


def torch_linear(rows: int, columns: int, dtype: torch.dtype) -> Kernel:
    """torch's linear layer on a float weight."""
    size = rows * columns * dtype.itemsize
    weights = [torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in copies(size)]

    def call(weight: torch.Tensor) -> Call:
        return lambda x: F.linear(x, weight)

    return Kernel(calls=[call(weight) for weight in weights], weight_bytes=size)


def torch_int4(rows: int, columns: int) -> Kernel:
    """torch's int4 kernel in groups of 128: bfloat16 only."""
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device="cuda")  # two codes a byte
    scales = torch.rand(columns // 128, rows, 2, device="cuda").bfloat16()

    def call() -> Call:
        weight = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
        own = scales.clone()
        return lambda x: torch.ops.aten._weight_int4pack_mm(x, weight, 128, own)

    size = codes.nbytes + scales.nbytes
    return Kernel(calls=[call() for _ in copies(size)], weight_bytes=size)


def kernels(rows: int, columns: int, dtype: torch.dtype) -> Iterator[tuple[str, Kernel]]:
    """Names and kernels; the first is what the others are compared with."""
    yield "torch linear", torch_linear(rows, columns, dtype)
    yield "W4A16 g128", goldstick_kernel(rows, columns, 4, 128, None, dtype)
    yield "  dequantized", dequantized(rows, columns, dtype, TritonBackend())
    yield "  reference", dequantized(rows, columns, dtype, ReferenceBackend())
    yield "W4A16 g32", goldstick_kernel(rows, columns, 4, 32, None, dtype)
    yield "W8A16 channel", goldstick_kernel(rows, columns, 8, columns, None, dtype)
    yield "W8A8 channel", goldstick_kernel(rows, columns, 8, columns, "int8-token", dtype)
    yield "W4A8 g128", goldstick_kernel(rows, columns, 4, 128, "int8-token", dtype)
    if dtype == torch.bfloat16:
        yield "FP8 scaled-mm", torch_fp8(rows, columns, dtype)
        yield "torch int4 g128", torch_int4(rows, columns)


def captured(kernel: Kernel, x: torch.Tensor) -> Callable[[], object]:
    """All calls of a kernel, one after another, as a graph; they have run once before, which tunes them.

    What cannot be captured, since it copies something from the processor, runs call by call.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in kernel.calls:
            call(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in kernel.calls:
                call(x)
    except RuntimeError as error:
        print(f"  not captured: {str(error).splitlines()[0]}")
        return lambda: [call(x) for call in kernel.calls]
    return graph.replay


def seconds_of(work: Callable[[], object]) -> float:
    """The device's time from the start of some work to its end."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def memory_rate() -> float:
    """Bytes a second, the faster of copying (which reads and writes) and adding up."""
    source = torch.ones(MEMORY_BUFFER // 4, device="cuda")
    target = torch.empty_like(source)
    copying = statistics.median(seconds_of(lambda: target.copy_(source)) for _ in range(20))
    adding = statistics.median(seconds_of(source.sum) for _ in range(20))
    return max(2 * source.nbytes / copying, source.nbytes / adding)


def figures(
    name: str, kernel: Kernel, tokens: int, times: list[float], eager: float, baseline: list[float], memory: float
) -> dict[str, float | str]:
    """A row of the table: ``times`` and ``baseline`` are seconds of one call, round by round."""
    middle = statistics.median(times)
    return {
        "kernel": name,
        "tokens": tokens,
        "us": round(middle * 1e6, 2),
        "eager_us": round(eager * 1e6, 2),
        "weight_GB_s": round(kernel.weight_bytes / middle / 1e9, 1),
        "of_memory": round(kernel.weight_bytes / middle / memory, 3),
        "times_torch": round(statistics.median(a / b for a, b in zip(baseline, times, strict=True)), 2),
    }


def measure(
    found: dict[str, Kernel], x: torch.Tensor, milliseconds: float, memory: float
) -> list[dict[str, float | str]]:
    """Time all kernels on one input, and print and return a row for each."""
    graphs = {name: captured(kernel, x) for name, kernel in found.items()}
    times: dict[str, list[float]] = {name: [] for name in found}
    until = time.perf_counter() + milliseconds * len(found) / 1e3
    while len(times["torch linear"]) < 5 or time.perf_counter() < until:
        for name, graph in graphs.items():
            times[name].append(seconds_of(graph) / len(found[name].calls))
    rows = []
    for name, kernel in found.items():
        eager = statistics.median(seconds_of(lambda call=call: call(x)) for call in kernel.calls)  # type: ignore[misc]
        row = figures(name, kernel, len(x), times[name][1:], eager, times["torch linear"][1:], memory)
        rows.append(row)
        line = "{kernel:16} {tokens:5} tokens {us:9.2f} us ({eager_us:9.2f} eager) {weight_GB_s:7.1f} GB/s"
        print(("  " + line + " {of_memory:5.2f} of memory {times_torch:6.2f} × torch linear").format(**row), flush=True)
    return rows


def shape(text: str) -> tuple[int, int]:
    """``4096x1024`` as rows and columns; columns in whole groups of 128."""
    rows, cross, columns = text.partition("x")
    if not (cross and rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write rows × columns as 4096x4096")
    if int(columns) % 128 or int(rows) % 8:
        raise argparse.ArgumentTypeError(f"{text!r}: torch's int4 kernel takes multiples of 8 rows and 128 columns")
    return int(rows), int(columns)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", type=shape, nargs="+", default=[(11008, 4096), (4096, 4096)])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512])
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--milliseconds", type=float, default=200.0, help="for each kernel and number of tokens")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit(
            f"This times kernels on a CUDA device, and torch {torch.__version__} finds none; "
            "benchmarks/kernels.py times those of the CPU."
        )
    dtype = getattr(torch, options.dtype)
    memory = memory_rate()
    name = torch.cuda.get_device_name(0)
    print(f"{name}: memory {memory / 1e9:.0f} GB/s")
    shapes = {}
    for rows, columns in options.shapes:
        print(f"[{rows} × {columns}], {options.dtype}")
        found = dict(kernels(rows, columns, dtype))
        inputs = [torch.randn(tokens, columns, device="cuda", dtype=dtype) for tokens in options.tokens]
        shapes[f"{rows}x{columns}"] = [row for x in inputs for row in measure(found, x, options.milliseconds, memory)]
    settings = {"dtype": options.dtype, "device": name, "memory_GB_s": round(memory / 1e9, 1)}
    RESULTS.parent.mkdir(exist_ok=True)
    result = {"settings": settings, "shapes": shapes, "environment": environment()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
