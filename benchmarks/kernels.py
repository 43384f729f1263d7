"""Time quantized linear layers against float32 and against other CPU kernels, interleaved in one process.

    OMP_NUM_THREADS=2 python benchmarks/kernels.py [--shapes 4096x4096] [--tokens 1 4] [--seconds 4] [--threads 2]
    OMP_NUM_THREADS=1 python benchmarks/kernels.py --threads 1 --clock processor

Each kernel runs twice in a round, after a pause, and the second run counts: threads of other libraries, which wait
busily for a while, have gone to sleep by then, and its own are awake. Rounds go on for ``--seconds`` for every number
of tokens (three rounds at least); a busy machine slows all of them, and two threads most of all, which wait for each
other: there, one thread and its own processor time tell more. Times are medians, ratios are medians of the rounds'
ratios. A weight is one of several copies in turn; until one comes again, all others, the other kernels' and the loop's
memory were read, so that no cache holds it. ``of read`` is the rate at which a kernel goes through its weight (codes,
scales, zeros), as a share of what a plain loop over twice what the machine's caches hold (100 MiB at least) reads in
the same rounds; ``of as many`` is the share of what that loop reads when it is given as many bytes as the weight has,
others each time: threads begin and end there, too, in a time that counts for small weights.

The peers are torch's bfloat16, its int4 kernel (bfloat16), FBGEMM's int8 with dynamic activations (7 bits of them),
and, if ``onnxruntime`` and ``onnx`` can be imported, MatMulNBits with float32 and with int8 arithmetic. Writes
``benchmarks/results/kernels.json``, or ``--out``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from goldstick.core.bitpack import pack_rows
from goldstick.core.element import INTEGER
from goldstick.jobs.bench.stopwatch import beyond_caches
from goldstick.jobs.save.records import environment
from goldstick.kernels import Activation
from goldstick.kernels.cpu import _C
from goldstick.kernels.prepared import PreparedLinear

RESULTS = Path(__file__).resolve().parent / "results" / "kernels.json"
PAUSE = 0.003
"""Seconds between kernels."""
TURN = 128 << 20
"""Bytes of one kernel's weights that are gone through before a copy comes again."""

Call = Callable[[torch.Tensor], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Something that multiplies an input by a weight of its own.

    Attributes:
        call: Takes the input float32 [tokens, in], and a copy of the weight that it did not use last.
        weight_bytes: What it reads of the weight.
    """

    call: Call
    weight_bytes: int


def in_turn(calls: list[Call]) -> Call:
    """One call after another, round and round."""
    state = {"next": 0}

    def run(x: torch.Tensor) -> object:
        state["next"] += 1
        return calls[state["next"] % len(calls)](x)

    return run


def copies(weight_bytes: int) -> range:
    """Of a weight, as many as take their turns."""
    return range(max(2, -(-TURN // weight_bytes)))


def goldstick_kernel(
    rows: int,
    columns: int,
    bits: int,
    group_size: int,
    activation: Activation,
    dtype: torch.dtype = torch.float32,
    *,
    interleaved: bool = True,
    from_cpp: bool = False,
    element: str = INTEGER,
) -> Kernel:
    """What a layer with a symmetric weight calls, in an optimized model or in one that was only loaded.

    Or, ``from_cpp``, what a block of one token calls: the same without the layer's checks and a new tensor for results.
    """
    groups = -(-columns // group_size)
    scale = torch.rand(rows, groups).to(dtype)
    packed = pack_rows(torch.randint(0, 2**bits, (rows, columns), dtype=torch.uint8), bits)
    weight_bytes = packed.nbytes + scale.nbytes

    def call(packed: torch.Tensor, scale: torch.Tensor) -> Call:
        layer = PreparedLinear(bits, group_size, columns, activation or "", interleaved, element)
        weight = packed, scale, None, None, None, None, None
        ready = layer.ready(weight)
        return without_checks(ready, rows) if from_cpp else lambda x: layer(x.to(dtype), weight)

    return Kernel(
        call=in_turn([call(packed.clone(), scale.clone()) for _ in copies(weight_bytes)]), weight_bytes=weight_bytes
    )


def without_checks(ready: Any, rows: int) -> Call:
    """A layer in C++, called with float32 and always the same tensor for results."""
    threads, results = torch.get_num_threads(), {}

    def run(x: torch.Tensor) -> object:
        if len(x) not in results:
            results[len(x)] = torch.empty(len(x), rows)
        return ready.run(x.data_ptr(), results[len(x)].data_ptr(), len(x), threads)

    return run


def torch_int4(rows: int, columns: int) -> Kernel:
    """torch's weight-only int4 kernel: bfloat16, groups of 128."""
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    scales = torch.rand(columns // 128, rows, 2).bfloat16()
    packed = [torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1) for _ in copies(codes.numel() // 2)]

    def call(weight: torch.Tensor) -> Call:
        return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), weight, 128, scales)

    return Kernel(call=in_turn([call(weight) for weight in packed]), weight_bytes=packed[0].nbytes + scales.nbytes)


def fbgemm_int8(rows: int, columns: int) -> Kernel:
    """torch's dynamic int8 linear, one scale a weight; its activations have 7 bits."""

    def call() -> Call:
        weight = torch.quantize_per_tensor(torch.randn(rows, columns), 0.03, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        return lambda x: torch.ops.quantized.linear_dynamic(x, packed, reduce_range=True)

    return Kernel(call=in_turn([call() for _ in copies(rows * columns)]), weight_bytes=rows * columns)


def onnx_int4(rows: int, columns: int, accuracy: int) -> Kernel:
    """onnxruntime's MatMulNBits in groups of 128; 0 multiplies float32, 4 rounds the input to int8."""
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    groups = columns // 128
    node = helper.make_node(
        "MatMulNBits",
        ["x", "codes", "scales"],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=rows,
        bits=4,
        block_size=128,
        accuracy_level=accuracy,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or its threads slow down who comes next
    options.log_severity_level = 3

    def call() -> Call:
        codes = numpy.random.randint(0, 256, (rows, groups, 64), dtype=numpy.uint8)
        scales = numpy.random.rand(rows * groups).astype(numpy.float32)
        graph = helper.make_graph(
            [node],
            "matmul",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, columns])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, rows])],
            [
                helper.make_tensor("codes", TensorProto.UINT8, codes.shape, codes.tobytes(), raw=True),
                helper.make_tensor("scales", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
            ],
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x.numpy()})

    weight_bytes = rows * columns // 2 + rows * groups * 4
    return Kernel(call=in_turn([call() for _ in copies(weight_bytes)]), weight_bytes=weight_bytes)


def kernels(rows: int, columns: int) -> Iterator[tuple[str, Kernel | str]]:
    """Name and kernel, or the reason why it is missing."""
    weights = [torch.randn(rows, columns) for _ in copies(4 * rows * columns)]
    calls: list[Call] = [lambda x, weight=weight: x @ weight.T for weight in weights]  # type: ignore[misc]
    yield "torch float32", Kernel(call=in_turn(calls), weight_bytes=4 * rows * columns)
    halves = [weight.bfloat16() for weight in weights]
    calls = [lambda x, weight=weight: x.bfloat16() @ weight.T for weight in halves]  # type: ignore[misc]
    yield "torch bfloat16", Kernel(call=in_turn(calls), weight_bytes=2 * rows * columns)
    yield "W4A16 g128", goldstick_kernel(rows, columns, 4, 128, None)
    yield "W4A16 g128, from C++", goldstick_kernel(rows, columns, 4, 128, None, from_cpp=True)
    yield "W4A16 g128 bfloat16", goldstick_kernel(rows, columns, 4, 128, None, torch.bfloat16)
    yield "W4A16 g128 float16", goldstick_kernel(rows, columns, 4, 128, None, torch.float16)
    yield "W4A16 g128, not interleaved", goldstick_kernel(rows, columns, 4, 128, None, interleaved=False)
    yield "W4A16 g32", goldstick_kernel(rows, columns, 4, 32, None)
    yield "W8A16 channel", goldstick_kernel(rows, columns, 8, columns, None)
    yield "W8A8 channel", goldstick_kernel(rows, columns, 8, columns, "int8-token")
    yield "W8A8 channel, not interleaved", goldstick_kernel(rows, columns, 8, columns, "int8-token", interleaved=False)
    yield "W4A8 g128", goldstick_kernel(rows, columns, 4, 128, "int8-token")
    yield "torch int4 g128 bfloat16", torch_int4(rows, columns)
    yield "FBGEMM int8 dynamic", fbgemm_int8(rows, columns)
    for accuracy in (0, 4):
        name = f"onnxruntime int4 g128, accuracy {accuracy}"
        try:
            yield name, onnx_int4(rows, columns, accuracy)
        except ImportError as error:
            yield name, f"not installed ({error})"


def reading_alike(words: torch.Tensor, weight_bytes: int, threads: int) -> Callable[[], object]:
    """A plain loop over as many bytes as a weight has, of other parts of the words each time; all of them at most."""
    size = min(weight_bytes // 4, words.shape[1])
    parts = [words[:, start : start + size] for start in range(0, words.shape[1] - size + 1, size)]
    read = in_turn([lambda _, part=part: _C.read_words(part, threads) for part in parts])  # type: ignore[misc]
    return lambda: read(words)


def seconds_of(call: Callable[[], object], clock: Clock) -> float:
    """How long one call takes, after a pause and another call."""
    time.sleep(PAUSE)
    call()
    start = clock()
    call()
    return clock() - start


def measure(
    found: dict[str, Kernel], x: torch.Tensor, rows: int, seconds: float, clock: Clock
) -> list[dict[str, float | str]]:
    """A row for each kernel: milliseconds, rates, and how many times as fast as float32."""
    words = torch.ones(1, beyond_caches() // 4, dtype=torch.int32)
    times: dict[str, list[float]] = {name: [] for name in found}
    reading: list[float] = []
    alike: dict[str, list[float]] = {name: [] for name in found}
    threads = torch.get_num_threads()
    loops = {name: reading_alike(words, kernel.weight_bytes, threads) for name, kernel in found.items()}
    started = time.perf_counter()
    while len(reading) < 4 or time.perf_counter() - started < seconds:
        reading.append(words.nbytes / seconds_of(lambda: _C.read_words(words, threads), clock))
        for name, kernel in found.items():
            times[name].append(seconds_of(lambda kernel=kernel: kernel.call(x), clock))  # type: ignore[misc]
            alike[name].append(seconds_of(loops[name], clock) * max(1.0, kernel.weight_bytes / words.nbytes))
    baseline, read = times["torch float32"][1:], statistics.median(reading[1:])  # the first round warms up
    result: list[dict[str, float | str]] = []
    for name, kernel in found.items():
        own = times[name][1:]
        middle = statistics.median(own)
        result.append(
            {
                "kernel": name,
                "tokens": len(x),
                "ms": round(middle * 1e3, 3),
                "weight_GB_s": round(kernel.weight_bytes / middle / 1e9, 2),
                "of_read": round(kernel.weight_bytes / middle / read, 3),
                "of_as_many": round(statistics.median(a / b for a, b in zip(alike[name][1:], own, strict=True)), 3),
                "GFLOP_s": round(2 * len(x) * rows * x.shape[1] / middle / 1e9, 1),
                "times_float32": round(statistics.median(a / b for a, b in zip(baseline, own, strict=True)), 2),
            }
        )
    print(f"{len(x)} tokens, {len(own)} rounds, a plain loop reads {read / 1e9:.1f} GB/s")
    for row in result:
        rates = "{weight_GB_s:6.1f} GB/s {of_read:5.2f} of read {of_as_many:5.2f} of as many {GFLOP_s:6.0f} GFLOP/s"
        line = "{kernel:36} {ms:9.3f} ms " + rates + " {times_float32:6.2f} × float32"
        print("  " + line.format(**row), flush=True)
    return result


def timing_options(
    about: str | None, *, shapes: list[str], tokens: list[int], seconds: float, results: Path
) -> tuple[argparse.Namespace, Clock]:
    """What a benchmark of kernels is asked for, with these defaults, and its clock; torch takes the threads."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=shapes, help="rows × columns")
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="processor: of one thread")
    parser.add_argument("--out", type=Path, default=results, help="the file of results")
    options = parser.parse_args()
    if options.clock == "processor" and options.threads != 1:
        parser.error("the processor time is that of the calling thread: give --threads 1 with it")
    torch.set_num_threads(options.threads)
    return options, time.thread_time if options.clock == "processor" else time.perf_counter


def main() -> None:
    """Measure, print, write."""
    options, clock = timing_options(
        __doc__, shapes=["11008x4096", "4096x4096"], tokens=[1, 4, 16, 64, 512], seconds=4.0, results=RESULTS
    )
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    shapes = {}
    for shape in options.shapes:
        rows, columns = (int(size) for size in shape.split("x"))
        found = dict(kernels(rows, columns))
        missing = {name: kernel for name, kernel in found.items() if isinstance(kernel, str)}
        there = {name: kernel for name, kernel in found.items() if isinstance(kernel, Kernel)}
        print(f"[{rows} × {columns}], {options.threads} threads" + "".join(f"; {k}: {v}" for k, v in missing.items()))
        measured = [
            measure(there, torch.randn(tokens, columns), rows, options.seconds, clock) for tokens in options.tokens
        ]
        shapes[shape] = {"rows": [row for part in measured for row in part], "missing": missing}
    settings = {"threads": options.threads, "seconds": options.seconds, "clock": options.clock, "isa": _C.isa()}
    options.out.parent.mkdir(exist_ok=True)
    result = {"settings": settings, "shapes": shapes, "environment": environment()}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
