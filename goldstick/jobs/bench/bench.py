"""Bench: how fast quantized layers run here, beside the same in float."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import UsageError
from goldstick.jobs.bench.decode import DecodeTime, can_write, decode_time
from goldstick.jobs.bench.stopwatch import PlainRead, seconds_of, verdict
from goldstick.jobs.load.load import load
from goldstick.kernels import ops, select
from goldstick.nn import PackedWeight, QuantizedLinear

#: Schemes that ``bench kernels`` times.
SCHEMES = ("w4a16-g128", "w4a8-dynamic-g128", "w8a16", "w8a8-dynamic")


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """What one kind of layer takes.

    Attributes:
        scheme: Name of its scheme.
        shape: [out, in].
        tokens: Rows of the input.
        backend: What ran it, and whether on a weight that was prepacked.
        ms: Median of one call.
        weight_gb_s: The rate at which it went through its weight.
        of_read: That rate as a share of what a plain loop reads, in the same rounds.
        times_float: Median of the rounds' ratios to a float linear layer of the shape and dtype.
    """

    scheme: str
    shape: tuple[int, int]
    tokens: int
    backend: str
    ms: float
    weight_gb_s: float
    of_read: float
    times_float: float

    @property
    def verdict(self) -> str:
        """``faster``, ``as fast`` or ``SLOWER``, against float."""
        return verdict(self.times_float)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "shape": list(self.shape), "verdict": self.verdict}


def bench_kernels(
    rows: int,
    columns: int,
    tokens: Sequence[int],
    seconds: float,
    dtype: torch.dtype = torch.float32,
    *,
    interleave: bool = True,
) -> list[LayerTime]:
    """Time random layers of every scheme of :data:`SCHEMES`, as optimized models have them or as they are loaded.

    Raises:
        UsageError: The groups of a scheme do not divide the columns.
    """
    if columns % 128:
        raise UsageError(f"Groups of 128 do not divide {columns} columns; give a multiple of 128.")
    found, read = [], PlainRead()
    for name in SCHEMES:
        scheme = Scheme.parse(name)
        groups = columns // scheme.weight.group_width(columns)
        codes = torch.randint(0, 2**scheme.weight.bits, (rows, columns), dtype=torch.uint8)
        scale = torch.rand(rows, groups).to(dtype)
        divisor = torch.ones(1, 1) if scheme.weight.tensor_scaled else None
        tensor = QuantizedTensor(codes=codes, scale=scale, zero=None, grid=scheme.weight, global_scale=divisor)
        layer = QuantizedLinear(tensor, scheme)
        found += [time_layer(layer, count, seconds, read, interleave=interleave) for count in tokens]
    return found


def bench_checkpoint(
    directory: Path, tokens: Sequence[int], seconds: float, *, interleave: bool = True
) -> tuple[list[LayerTime], DecodeTime | None]:
    """Time every kind of linear layer of a checkpoint, and its decoding if it is a causal language model.

    Raises:
        UsageError: No layer of it is quantized.
    """
    model: Any = load(directory)
    kinds: dict[tuple[Any, ...], QuantizedLinear] = {}
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear):
            kinds.setdefault((layer.scheme.label, layer.out_features, layer.in_features), layer)
    if not any(isinstance(module, PackedWeight) for module in model.modules()):
        raise UsageError(f"{directory} holds no quantized layer, so there is nothing to compare with float.")
    read = PlainRead()
    times = [
        time_layer(layer, count, seconds, read, interleave=interleave) for layer in kinds.values() for count in tokens
    ]
    return times, decode_time(model, seconds) if can_write(model) else None


@torch.no_grad()
def time_layer(
    layer: QuantizedLinear, tokens: int, seconds: float, read: PlainRead, *, interleave: bool = True
) -> LayerTime:
    """Time a copy of a layer beside a float one, in turn.

    Before each call memory is read that leaves no cache as it was, and another copy is called: the weight then comes
    from memory, as in a network, while threads are awake and Python has what it needs.
    """
    rows, columns, dtype = layer.out_features, layer.in_features, layer.weight_scale.dtype
    stored = (layer.weight_packed, layer.weight_scale, layer.weight_zero_point)
    weight_bytes = sum(tensor.nbytes for tensor in stored if tensor is not None)
    own = [copy.deepcopy(layer) for _ in range(2)]
    for one in own:
        one.prepared.interleaved = interleave
    floats = [torch.randn(rows, columns).to(dtype) for _ in range(2)]
    x = torch.randn(tokens, columns).to(dtype)
    taken: list[float] = []
    ratios: list[float] = []
    reading: list[float] = []
    started, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - started < seconds:
        reading.append(read.bytes_per_second())
        quantized = [seconds_of(partial(one, x)) for one in own]
        reading.append(read.bytes_per_second())
        plain = [seconds_of(partial(torch.nn.functional.linear, x, one)) for one in floats]
        if rounds > 0:  # the first round warms up
            taken.append(quantized[-1])
            ratios.append(plain[-1] / quantized[-1])
        rounds += 1
    backend = _backend(own[0]) + (", interleaved" if own[0].prepared.reads_copy else "")
    middle = statistics.median(taken)
    return LayerTime(
        scheme=layer.scheme.label,
        shape=(rows, columns),
        tokens=tokens,
        backend=backend,
        ms=middle * 1e3,
        weight_gb_s=weight_bytes / middle / 1e9,
        of_read=weight_bytes / middle / statistics.median(reading),
        times_float=statistics.median(ratios),
    )


def _backend(layer: QuantizedLinear) -> str:
    bits, group_size, columns, activation = layer.prepared.settings
    spec = ops.spec_of(
        bits,
        group_size,
        columns,
        layer.out_features,
        layer.weight_zero_point is not None,
        layer.weight_scale.dtype,
        activation,
    )
    chosen: str = select(spec, layer.weight_packed.device).name
    return chosen
