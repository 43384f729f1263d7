"""Convolutions of ResNet-50 and MobileNetV2, layer by layer: float32, goldstick, torch's own int8, onnxruntime's int8.

    python -m benchmarks.convolutions --threads 2 --rounds 15

Every candidate takes and gives float32 images, so rounding the input is part of what is timed. In a round each runs
once, one after the other; the least time of all rounds counts. Memory that is given back stays with the process: else
some pay for new pages of their outputs and others do not. Needs ``onnx`` and ``onnxruntime`` for the last two.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cifar import ROOT
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.json_files import write_atomically
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.kernels.cpu import chosen_isa
from goldstick.nn import QuantizedConvolution
from goldstick.nn.derived import in_place_of

Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A convolution of a network, and how often it has it."""

    channels: int
    out: int
    kernel: int
    stride: int
    side: int
    groups: int = 1
    count: int = 1

    @property
    def name(self) -> str:
        kind = "depthwise " if self.groups > 1 else ""
        step = f" / {self.stride}" if self.stride > 1 else ""
        return f"{kind}{self.kernel} × {self.kernel}, {self.channels} → {self.out}, {self.side} × {self.side}{step}"

    @property
    def products(self) -> int:
        after = math.ceil(self.side / self.stride)
        return self.out * self.channels // self.groups * self.kernel**2 * after**2


def resnet50() -> list[Shape]:
    """The convolutions of ResNet-50 (arXiv 1512.03385, the stride in the 3 × 3), equal ones together."""
    found = [Shape(channels=3, out=64, kernel=7, stride=2, side=224)]
    inner, side = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            found.append(Shape(channels=inner, out=width, kernel=1, stride=1, side=side))
            found.append(Shape(channels=width, out=width, kernel=3, stride=stride, side=side))
            if block == 0:
                found.append(Shape(channels=inner, out=4 * width, kernel=1, stride=stride, side=side))
            side //= stride
            found.append(Shape(channels=width, out=4 * width, kernel=1, stride=1, side=side))
            inner = 4 * width
    return _counted(found)


def mobilenet_v2() -> list[Shape]:
    """The convolutions of MobileNetV2 (arXiv 1801.04381, table 2), equal ones together."""
    found = [Shape(channels=3, out=32, kernel=3, stride=2, side=224)]
    inner, side = 32, 112
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, out, repeats, first in rows:
        for index in range(repeats):
            stride, wide = first if index == 0 else 1, inner * expansion
            if expansion > 1:
                found.append(Shape(channels=inner, out=wide, kernel=1, stride=1, side=side))
            found.append(Shape(channels=wide, out=wide, kernel=3, stride=stride, side=side, groups=wide))
            side //= stride
            found.append(Shape(channels=wide, out=out, kernel=1, stride=1, side=side))
            inner = out
    found.append(Shape(channels=inner, out=1280, kernel=1, stride=1, side=side))
    return _counted(found)


def mobilenet_v1() -> list[Shape]:
    """The convolutions of MobileNet (arXiv 1704.04861, table 1), equal ones together."""
    found = [Shape(channels=3, out=32, kernel=3, stride=2, side=224)]
    side = 112
    steps = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    for inner, out, stride in [*steps, *[(512, 512, 1)] * 5, (512, 1024, 2), (1024, 1024, 1)]:
        found.append(Shape(channels=inner, out=inner, kernel=3, stride=stride, side=side, groups=inner))
        side //= stride
        found.append(Shape(channels=inner, out=out, kernel=1, stride=1, side=side))
    return _counted(found)


def _counted(shapes: list[Shape]) -> list[Shape]:
    unique = dict.fromkeys(shapes)
    return [Shape(**{**vars(shape), "count": shapes.count(shape)}) for shape in unique]


def quantized(layer: nn.Conv2d, scheme: str, scale: float) -> nn.Module:
    """A layer of goldstick; ``scale`` is that of a static input."""
    parsed = Scheme.parse(scheme)
    tensor = quantize_with_search(Layout.CONVOLUTION.to_matrix(layer.weight.detach()), parsed.weight, "minmax")
    given = {"input_scale": torch.tensor(scale)} if parsed.static_input else {}
    return in_place_of(QuantizedConvolution, layer, tensor, parsed, Layout.CONVOLUTION, **given)


def torch_int8(layer: nn.Conv2d, x: Tensor, scale: float, engine: str) -> Run:
    """torch's own static int8 convolution, between rounding its input and dequantizing its output."""
    torch.backends.quantized.engine = engine
    weight = layer.weight.detach()
    scales = weight.abs().flatten(1).amax(1).double() / 127
    codes = torch.quantize_per_channel(weight, scales, torch.zeros(len(scales), dtype=torch.int64), 0, torch.qint8)
    sizes = list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups
    packed = torch.ops.quantized.conv2d_prepack(codes, layer.bias, *sizes)
    after = float(layer(x).abs().max()) / 63.5

    def run() -> Tensor:
        q = torch.quantize_per_tensor(x, 2 * scale, 64, torch.quint8)  # seven bits, which its kernels are exact for
        found: Tensor = torch.ops.quantized.conv2d(q, packed, after, 64).dequantize()
        return found

    return run


def onnx_int8(layer: nn.Conv2d, x: Tensor, scale: float, threads: int, dynamic: bool) -> Run:
    """onnxruntime's QLinearConv between QuantizeLinear and DequantizeLinear, or its ConvInteger with dynamic ranges."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weight = layer.weight.detach()
    scales = (weight.abs().flatten(1).amax(1) / 127).numpy()
    codes = (weight / torch.from_numpy(scales).view(-1, 1, 1, 1)).round().to(torch.int8).numpy()
    pads = [layer.padding[0]] * 2 + [layer.padding[1]] * 2
    sizes = {
        "strides": list(layer.stride),
        "pads": pads,
        "group": layer.groups,
        "kernel_shape": list(layer.kernel_size),
    }
    sizes["pads"] = [int(layer.padding[0]), int(layer.padding[1])] * 2
    held = {"w": codes, "ws": scales, "wz": np.zeros(len(scales), np.int8)}
    if dynamic:
        held |= {"wz0": np.zeros((), np.int8), "ws4": scales.reshape(1, -1, 1, 1)}
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("ConvInteger", ["q", "w", "z", "wz0"], ["sums"], **sizes),
            helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["s", "ws4"], ["by"]),
            helper.make_node("Mul", ["floats", "by"], ["y"]),
        ]
    else:
        after = float(layer(x).abs().max()) / 127
        held |= {"s": np.float32(scale), "z": np.uint8(128), "ys": np.float32(after), "yz": np.uint8(128)}
        held |= {"b": np.zeros(len(scales), np.int32)}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "ys", "yz", "b"], ["p"], **sizes),
            helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
        ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", floats, list(x.shape))],
        [helper.make_tensor_value_info("y", floats, list(layer(x).shape))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would run on while others are timed
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {"x": x.numpy()}
    return lambda: session.run(None, given)


def candidates(shape: Shape, batch: int, threads: int, peers: bool) -> dict[str, Run]:
    """What is timed for one shape, by name."""
    torch.manual_seed(0)
    sizes = shape.channels, shape.out, shape.kernel, shape.stride, shape.kernel // 2
    layer = nn.Conv2d(*sizes, groups=shape.groups).eval()
    x = torch.randn(batch, shape.channels, shape.side, shape.side)
    scale = float(x.abs().max()) / 127.5
    last = x.contiguous(memory_format=torch.channels_last)
    layer_last = nn.Conv2d(*sizes, groups=shape.groups).to(memory_format=torch.channels_last).eval()
    found: dict[str, Run] = {"float32": lambda: layer(x), "float32 channels last": lambda: layer_last(last)}
    for name in ("w8a8-static", "w8a8-dynamic", "w8a16"):
        one = quantized(layer, name, scale)
        found[name] = lambda one=one: one(x)  # type: ignore[misc]
        found[f"{name} channels last"] = lambda one=one: one(last)  # type: ignore[misc]
    if peers:
        for engine in ("x86", "onednn"):
            if engine in torch.backends.quantized.supported_engines:
                found[f"torch int8 {engine}"] = torch_int8(layer, x, scale, engine)
        found["onnxruntime int8 static"] = onnx_int8(layer, x, scale, threads, dynamic=False)
        found["onnxruntime int8 dynamic"] = onnx_int8(layer, x, scale, threads, dynamic=True)
    return found


def keep_memory() -> None:
    """Let the C library keep what is given back, large blocks too."""
    if platform.libc_ver()[0] == "glibc":
        library, trim, mapped = ctypes.CDLL(None), -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        library.mallopt(trim, 2**31 - 1)
        library.mallopt(mapped, 2**30)


def timed(runs: dict[str, Run], rounds: int, seconds: float) -> dict[str, float]:
    """Least milliseconds of each, over rounds in which each runs once; no more rounds after so many seconds."""
    least = {name: math.inf for name in runs}
    started = time.perf_counter()
    with torch.inference_mode():
        for turn in range(rounds + 1):  # the first warms up
            for name, run in runs.items():
                before = time.perf_counter()
                run()
                if turn:
                    least[name] = min(least[name], 1e3 * (time.perf_counter() - before))
            if turn > 3 and time.perf_counter() - started > seconds:
                break
    return least


def main() -> None:
    """Time all layers, and write and print the sums over each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=4.0, help="for one layer at most")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "convolutions.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_memory()
    warnings.simplefilter("ignore")
    content: dict[str, Any] = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "isa": chosen_isa(),
            "torch": torch.__version__,
        },
        "threads": arguments.threads,
        "networks": {},
    }
    networks = {"ResNet-50": resnet50(), "MobileNet": mobilenet_v1(), "MobileNetV2": mobilenet_v2()}
    for network, shapes in networks.items():
        for batch in arguments.batches:
            rows = []
            for shape in shapes:
                runs = candidates(shape, batch, arguments.threads, not arguments.no_peers)
                rows.append(
                    {"layer": shape.name, "count": shape.count, "ms": timed(runs, arguments.rounds, arguments.seconds)}
                )
                ms = rows[-1]["ms"]
                print(
                    f"{network} {batch} {shape.name:44}",
                    *(f"{name} {value:.3f}" for name, value in ms.items()),
                    sep="  ",
                    flush=True,
                )
            sums = {name: sum(row["count"] * row["ms"][name] for row in rows) for name in rows[0]["ms"]}
            content["networks"][f"{network}, batch {batch}"] = {"sums_ms": sums, "layers": rows}
            write_atomically(arguments.out, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
            print(
                f"== {network}, batch {batch}: " + ", ".join(f"{name} {value:.1f} ms" for name, value in sums.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
