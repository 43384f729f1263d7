"""The operators of ONNX that a quantized layer becomes give what goldstick's plain backend gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.scheme import Scheme
from goldstick.formats import GRAPHS
from goldstick.formats.graph import GraphLayer

ONNX = GRAPHS["onnx"]


def codes(scheme: Scheme, rows: int, columns: int, *, whole_zeros: bool = True) -> QuantizedTensor:
    grid = scheme.weight
    groups = grid.groups(columns)
    zero = None
    if not grid.symmetric:
        zero = torch.rand(rows, groups) * (2**grid.bits - 1)
        zero = zero.round() if whole_zeros else zero
    return QuantizedTensor(
        codes=torch.randint(0, 2**grid.bits, (rows, columns), dtype=torch.uint8),
        scale=torch.rand(rows, groups) / 2**grid.bits + 0.01,
        zero=zero,
        grid=grid,
    )


def run(layer: GraphLayer, x: Tensor, path: Path) -> tuple[Tensor, dict[str, int]]:
    """The layer alone in a file, on an input."""
    node = helper.make_node("layer", ["x"], ["y"], domain="goldstick", index=0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    opsets = [helper.make_opsetid("", ONNX.version), helper.make_opsetid("goldstick", 1)]
    model = helper.make_model(
        helper.make_graph([node], "alone", ends[:1], ends[1:]), opset_imports=opsets, ir_version=10
    )
    used = ONNX.write(SimpleNamespace(model_proto=model), [layer], path)
    return torch.from_numpy(ONNX.session(path)({"x": x.numpy()})[0]), dict(used)


def made(name: str, **more: Any) -> GraphLayer:
    torch.manual_seed(0)
    scheme = Scheme.parse(name)
    columns = more.pop("columns", 96)
    tensor = codes(scheme, 10, columns, whole_zeros=more.pop("whole_zeros", True))
    static = scheme.activation is not None and scheme.activation.granularity == "tensor"
    if static:
        more["input_scale"] = torch.tensor([0.021])
        if not scheme.activation.symmetric:
            more["input_zero"] = torch.tensor([11], dtype=torch.int8)
    return GraphLayer(name="one", kind="linear", tensor=tensor, scheme=scheme, **more)


@pytest.mark.parametrize("name", ["w4a16-g32", "w8a8-dynamic", "w8a8-static", "w4a8-dynamic-g32", "w4a4-dynamic-g32"])
def test_a_layer_that_is_called_twice_has_nodes_for_each_call_and_its_weight_once(name: str, tmp_path: Path) -> None:
    layer, x = made(name, columns=96), torch.randn(2, 3, 96)
    alone, _ = run(layer, x, tmp_path / "alone.onnx")
    nodes = [helper.make_node("layer", ["x"], [one], domain="goldstick", index=0) for one in ("first", "second")]
    nodes.append(helper.make_node("Sub", ["first", "second"], ["none"]))
    ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in ("x", "first", "none")]
    opsets = [helper.make_opsetid("", ONNX.version), helper.make_opsetid("goldstick", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "twice", ends[:1], ends[1:]), opset_imports=opsets, ir_version=10
    )
    path = tmp_path / "twice.onnx"
    ONNX.write(SimpleNamespace(model_proto=model), [layer], path)
    first, none = ONNX.session(path)({"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(first), alone)  # the runtime may join other operators
    assert not none.any()
    held = [one.name for one in onnx.load(path).graph.initializer]
    assert len(held) == len(set(held))


@pytest.mark.parametrize(
    ("name", "operator", "columns"),
    [
        ("w4a16-g32", "MatMulNBits", 96),
        ("w4a16-g32", "MatMulNBits", 80),  # the last group of a row is half as long
        ("w4a16-g16-asym", "MatMulNBits", 96),
        ("w4a16-g48", "MatMulNBits", 96),  # blocks of 16
        ("w3a16-channel", "MatMulNBits", 100),  # rows that are no whole blocks
        ("w8a16", "MatMulNBits", 200),
        ("w5a16-g32-asym", "MatMulNBits", 96),
        ("w8a8-dynamic", "MatMulInteger", 96),
        ("w4a8-dynamic-channel", "MatMulInteger", 96),
        ("w8a8-dynamic-channel-asym", "MatMulInteger", 96),
        ("w4a8-dynamic-g32", "MatMulNBits", 96),
        ("w4a4-dynamic-g32", "MatMulNBits", 96),
        ("w4a4-dynamic-channel", "MatMulInteger", 96),
        ("w8a8-static", "QDQ MatMul", 96),
        ("w8a8-static-shifted", "QDQ MatMul", 96),
        ("w4a8-static-g32", "MatMulNBits", 96),
    ],
)
def test_a_linear_layer_is_what_the_plain_backend_computes(
    name: str, operator: str, columns: int, tmp_path: Path
) -> None:
    layer = made(name, columns=columns, bias=torch.arange(10.0))
    x = torch.randn(2, 3, columns)
    x[0, 0] = 0  # a token without any scale
    found, used = run(layer, x, tmp_path / "one.onnx")
    activation = layer.scheme.activation
    rounded = quantized_input(x, activation and activation.input_name, layer.input_scale, layer.input_zero)
    expected = F.linear(rounded, layer.tensor.dequantize(), layer.bias)
    assert used == {operator: 1}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["w8a8-static", "w8a8-static-shifted", "w4a8-static"])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_weights_of_integer_products_are_unsigned_so_that_no_sum_is_cut_off(
    name: str, kind: str, tmp_path: Path
) -> None:
    layer = made(name, columns=4 * 3 * 2)
    if kind == "convolution":
        sizes = {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1}
        layer = GraphLayer(**{**vars(layer), "kind": kind, "kernel": (10, 4, 3, 2), "sizes": sizes})
    x = 10 * torch.ones(2, 4, 3, 2) if kind == "convolution" else 10 * torch.ones(2, 24)
    codes_ = torch.full_like(layer.tensor.codes, layer.tensor.grid.code_max)
    tensor = QuantizedTensor(**{**vars(layer.tensor), "codes": codes_})
    found, _ = run(GraphLayer(**{**vars(layer), "tensor": tensor}), x, tmp_path / "one.onnx")
    rounded = quantized_input(x, None, layer.input_scale, layer.input_zero).reshape(2, 24)
    torch.testing.assert_close(found.reshape(2, 10), rounded @ tensor.dequantize().T, rtol=1e-4, atol=1e-4)
    held = {one.name: one.data_type for one in onnx.load(tmp_path / "one.onnx").graph.initializer}
    assert held["one.codes"] == held["one.zeros"] == TensorProto.UINT8


def test_zeros_that_are_fractions_multipliers_and_orders_are_kept(tmp_path: Path) -> None:
    order, factors = torch.randperm(96), torch.rand(96) + 0.5
    layer = made("w4a16-g32-asym", whole_zeros=False, input_multiplier=factors)
    tensor = QuantizedTensor(**{**vars(layer.tensor), "input_order": order})
    layer = GraphLayer(**{**vars(layer), "tensor": tensor})
    x = torch.randn(5, 96)
    found, _ = run(layer, x, tmp_path / "one.onnx")
    torch.testing.assert_close(found, (x * factors) @ tensor.dequantize().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["w4a16-channel-asym", "w4a16-g16", "w4a16-g16-asym", "w8a8-static", "w8a8-dynamic"])
def test_a_convolution_is_what_the_plain_backend_computes(name: str, tmp_path: Path) -> None:
    sizes = {"strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 2], "group": 2}
    layer = made(name, columns=4 * 3 * 2, bias=torch.arange(10.0))
    layer = GraphLayer(**{**vars(layer), "kind": "convolution", "kernel": (10, 4, 3, 2), "sizes": sizes})
    x = torch.randn(2, 8, 7, 6)
    found, _ = run(layer, x, tmp_path / "one.onnx")
    if name == "w8a8-dynamic":  # a scale for each sample
        x = quantized_input(x.flatten(1), "int8-token", None, None).reshape(x.shape)
    elif layer.input_scale is not None:
        x = quantized_input(x, None, layer.input_scale, None)
    weight = layer.tensor.dequantize().reshape(layer.kernel)
    expected = F.conv2d(x, weight, layer.bias, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_codes_of_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    layer = made("w4a16-g32", columns=4096)
    run(layer, torch.zeros(1, 4096), tmp_path / "one.onnx")
    assert (tmp_path / "one.onnx").stat().st_size < 10 * 4096 * (0.5 + 4 / 32 + 0.5 / 32) + 2000


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("fp8-dynamic", "linear", "w8a8-dynamic"),
        ("w4afp8", "linear", "w8a8-dynamic"),
        ("w4a16-g24", "linear", "multiple of 16"),
    ],
)
def test_what_it_cannot_hold_is_refused_with_what_would_do(name: str, kind: Any, remedy: str) -> None:
    scheme = Scheme.parse(name)
    columns = 256 if scheme.weight.group_size == 128 else 48
    tensor = QuantizedTensor(
        codes=torch.zeros(4, columns, dtype=torch.uint8),
        scale=torch.ones(4, scheme.weight.groups(columns)),
        zero=None,
        grid=scheme.weight,
    )
    reason = ONNX.refuses(GraphLayer(name="one", kind=kind, tensor=tensor, scheme=scheme))
    assert reason is not None and remedy in reason


def test_products_of_codes_do_not_saturate(tmp_path: Path) -> None:
    scheme = Scheme.parse("w8a8-dynamic")
    codes_ = torch.full((8, 512), 255, dtype=torch.uint8)
    tensor = QuantizedTensor(codes=codes_, scale=torch.ones(8, 1), zero=None, grid=scheme.weight)
    found, _ = run(
        GraphLayer(name="one", kind="linear", tensor=tensor, scheme=scheme), torch.ones(3, 512), tmp_path / "o.onnx"
    )
    np.testing.assert_allclose(found.numpy(), 127 * 127 * 512 / 127.5, rtol=1e-6)
