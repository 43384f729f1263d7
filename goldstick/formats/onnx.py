"""ONNX: networks for onnxruntime and OpenVINO, with int4 and int8 weights and int8 activations.

What a layer becomes, by its scheme:

- *float inputs*, linear: ``MatMulNBits`` of the domain com.microsoft, 4 or 8 bits, ŵ = (code − zero) · scale in blocks
  of a power of two. Fewer bits are stored in 4, and 5 to 7 in 8.
- *static inputs*, weights by channel: QDQ, ``QuantizeLinear`` and ``DequantizeLinear`` around unsigned codes of
  the weight, which runtimes fuse into integer products that no processor cuts off.
- *dynamic inputs*, weights by channel: codes by token, q = round(clamp(x / s, −128, 127)) with s = max|x| / 127.5, then
  ``MatMulInteger``, exact in int32; y = s · scale · Σ. ``DynamicQuantizeLinear`` has one scale a tensor: other numbers.
- *8-bit inputs, weights by group*: inputs are rounded to their codes and back, then ``MatMulNBits``.
- *convolutions*: ``DequantizeLinear`` by channel or block before ``Conv``, and QDQ of the input, where it is static. A
  dynamic input is rounded to its codes, with a scale for each sample, and back.

Operators as onnx 1.23 (opset 21) and onnxruntime 1.32 (docs/ContribOperators.md) describe them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.formats.graph import GraphFormat, GraphLayer, Session

#: The domain of nodes that stand for quantized layers while a network is traced.
DOMAIN = "goldstick"
_MICROSOFT = "com.microsoft"
_LARGEST_BLOCK, _SMALLEST_BLOCK = 128, 16
#: Bytes beyond which weights lie in a file of their own; protocol buffers end at 2 GiB.
_LARGEST_FILE = 2**30


class Onnx(GraphFormat):
    """Files of ONNX."""

    name = "onnx"
    file = "model.onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    version = 21

    def refuses(self, layer: GraphLayer) -> str | None:
        """Float elements, groups that are no blocks, and convolutions by group."""
        grid, inputs = layer.scheme.weight, layer.scheme.activation
        if not grid.integers or grid.superblock is not None:
            return (
                f"its weights are {grid.label}, and operators of ONNX that run on processors hold plain integers; "
                "quantize it with w4a16-g32, w8a8-dynamic or w8a8-static"
            )
        if inputs is not None and not inputs.integers:
            return f"its inputs are {inputs.label}; quantize it with w8a8-dynamic or w8a8-static"
        width = grid.group_width(layer.tensor.in_features)
        if layer.kind == "convolution":
            return None if _whole_zeros(layer) else "its zeros are fractions; quantize it with a symmetric scheme"
        whole = width >= layer.tensor.in_features
        if not whole and _block(width, layer.tensor.in_features) < _SMALLEST_BLOCK:
            return f"it has groups of {width}, and blocks are powers of two from 16 on; take a multiple of 16"
        return None

    def write(self, traced: Any, layers: Sequence[GraphLayer], path: Path) -> Mapping[str, int]:
        """See :meth:`GraphFormat.write`."""
        import onnx
        from onnx import helper

        model = traced.model_proto
        graph, used, calls = model.graph, Counter[str](), Counter[int]()
        nodes = []
        for node in graph.node:
            if node.domain != DOMAIN:
                nodes.append(node)
                continue
            index = next(one.i for one in node.attribute if one.name == "index")
            made = _Nodes(layers[index], node.input[0], node.output[0], calls[index])
            made.write()
            nodes += made.nodes
            graph.initializer.extend([] if calls[index] else made.initializers)
            calls[index] += 1
            used.update({made.operator: 1})
        del graph.node[:]
        graph.node.extend(nodes)
        kept = [entry for entry in model.opset_import if entry.domain not in (DOMAIN, _MICROSOFT)]
        del model.opset_import[:]
        model.opset_import.extend([*kept, helper.make_opsetid(_MICROSOFT, 1)])
        apart = model.ByteSize() > _LARGEST_FILE
        onnx.save_model(model, str(path), save_as_external_data=apart, location=f"{path.name}_data")
        return dict(used)

    def session(self, path: Path) -> Session:
        """onnxruntime's, on the processor."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        found = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = {one.name for one in found.get_inputs()}
        return lambda inputs: found.run(None, {name: value for name, value in inputs.items() if name in names})


class _Nodes:
    """The operators of one layer between its input and its output, in one of its calls, which share its tensors."""

    def __init__(self, layer: GraphLayer, x: str, y: str, call: int = 0) -> None:
        self.layer, self.x, self.y = layer, x, y
        self.prefix = f"{layer.name}/call_{call}" if call else layer.name
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.operator = ""

    def write(self) -> None:
        """Make them."""
        layer, x = self.layer, self.x
        order, activation = layer.tensor.input_order, layer.scheme.activation
        if layer.input_multiplier is not None:
            x = self.add("Mul", [x, self.hold("multiplier", layer.input_multiplier.float())])
        if order is not None:
            x = self.add("Gather", [x, self.hold("order", order.long())], axis=-1)
        by_channel = layer.scheme.weight.group_width(layer.tensor.in_features) >= layer.tensor.in_features
        if layer.kind == "convolution":
            self._convolution(x)
        elif activation is None:
            self._blocks(x)
        elif not by_channel or not _whole_zeros(layer):
            self._blocks(self._rounded(x, [-1]))
        elif activation.granularity == "token":
            self._integers(x)
        else:
            self._between(self._quantized_and_back(x))

    def _blocks(self, x: str) -> None:
        """MatMulNBits in float32."""
        layer, tensor = self.layer, self.layer.tensor
        bits = 4 if tensor.grid.bits <= 4 else 8
        block = _block(layer.scheme.weight.group_width(tensor.in_features), tensor.in_features)
        blocks = -(-tensor.in_features // block)
        codes = torch.zeros(len(tensor.codes), blocks * block, dtype=torch.uint8)
        codes[:, : tensor.in_features] = tensor.codes
        codes = codes.reshape(len(codes), blocks, block)
        packed = codes[..., ::2] | codes[..., 1::2] << 4 if bits == 4 else codes
        columns = torch.arange(blocks) * block // tensor.grid.group_width(tensor.in_features)
        zero = tensor.zero if tensor.zero is not None else torch.full_like(tensor.scale, tensor.grid.midpoint)
        names = [x, self.hold("codes", packed), self.hold("scales", tensor.scale.float()[:, columns])]
        names.append(self.hold("zeros", _zeros(zero.float()[:, columns], bits)))
        if layer.bias is not None:
            names += ["", self.hold("bias", layer.bias.float())]
        sizes = {"K": tensor.in_features, "N": len(codes), "bits": bits, "block_size": block}
        self.add("MatMulNBits", names, self.y, domain=_MICROSOFT, **sizes)
        self.operator = "MatMulNBits"

    def _integers(self, x: str) -> None:
        """MatMulInteger of codes by token."""
        tensor = self.layer.tensor
        codes, step = self._codes(x, [-1])
        weight, zero = _signed(tensor.codes.T), _signed_zeros(self.layer)
        names = [self.add("Cast", [codes], to=3), self.hold("codes", weight)]
        if zero is not None:
            names += [self.hold("no_zero", torch.zeros((), dtype=torch.int8)), self.hold("zeros", zero)]
        sums = self.add("Cast", [self.add("MatMulInteger", names)], to=1)
        scaled = self.add("Mul", [sums, step])
        self._with_bias("Mul", [scaled, self.hold("scales", tensor.scale.float()[:, 0])])
        self.operator = "MatMulInteger"

    def _between(self, x: str) -> None:
        """MatMul of dequantized codes."""
        weight = self._dequantized(self.layer.tensor.codes.T, axis=1)
        self._with_bias("MatMul", [x, weight])
        self.operator = "QDQ MatMul"

    def _convolution(self, x: str) -> None:
        layer, tensor = self.layer, self.layer.tensor
        activation = layer.scheme.activation
        if activation is not None:
            sides = list(range(1, len(layer.kernel)))
            x = self._quantized_and_back(x) if layer.input_scale is not None else self._rounded(x, sides)
        width = tensor.grid.group_width(tensor.in_features)
        if width >= tensor.in_features:
            weight = self._dequantized(tensor.codes.reshape(layer.kernel), axis=0)
        else:
            zero = (
                tensor.zero if tensor.zero is not None else torch.full_like(tensor.scale, tensor.grid.midpoint)
            ) - 128
            names = [self.hold("codes", _signed(tensor.codes)), self.hold("scales", tensor.scale.float())]
            names.append(self.hold("zeros", zero.to(torch.int8)))
            flat = self.add("DequantizeLinear", names, axis=1, block_size=width)
            weight = self.add("Reshape", [flat, self.hold("shape", torch.tensor(layer.kernel))])
        names = [x, weight]
        names += [] if layer.bias is None else [self.hold("bias", layer.bias.float())]
        self.add("Conv", names, self.y, **(layer.sizes or {}))
        self.operator = "QDQ Conv" if layer.input_scale is not None else "DequantizeLinear Conv"

    def _codes(self, x: str, axes: list[int]) -> tuple[str, str]:
        """Codes of an input as floats, and their scale, one for all values along some axes."""
        over = self.hold("axes", torch.tensor(axes))
        largest = self.add("ReduceMax", [self.add("Abs", [x]), over], keepdims=1)
        assert self.layer.scheme.activation is not None
        end = 2.0 ** (self.layer.scheme.activation.bits - 1)
        step = self.add("Div", [largest, self._number("levels", end - 0.5)])
        none = self.add("Equal", [step, self._number("nothing", 0.0)])
        least = self._number("least", torch.finfo(torch.float32).eps)
        step = self.add("Where", [none, least, step])
        ends = self._number("low", -end), self._number("high", end - 1)
        return self.add("Round", [self.add("Clip", [self.add("Div", [x, step]), *ends])]), step

    def _number(self, name: str, value: float) -> str:
        return self.hold(name, torch.tensor(value, dtype=torch.float32))

    def _rounded(self, x: str, axes: list[int]) -> str:
        """An input rounded to its codes and back."""
        if self.layer.input_scale is not None:
            return self._quantized_and_back(x)
        return self.add("Mul", list(self._codes(x, axes)))

    def _quantized_and_back(self, x: str) -> str:
        layer = self.layer
        assert layer.input_scale is not None
        zero = layer.input_zero if layer.input_zero is not None else torch.zeros(1, dtype=torch.int8)
        scale = self.hold("input_scale", layer.input_scale.float().reshape(()))
        shift = self.hold("input_zero", zero.reshape(()))
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [x, scale, shift]), scale, shift])

    def _dequantized(self, codes: Tensor, axis: int) -> str:
        """A weight with scales by channel, from unsigned codes.

        Products of unsigned inputs, which runtimes make of signed ones, and signed weights are added up in 16 bits by
        onnxruntime where the processor has no VNNI, and come out wrong where two of them do not fit.
        """
        tensor = self.layer.tensor
        zero = torch.full_like(tensor.scale, tensor.grid.midpoint) if tensor.zero is None else tensor.zero.round()
        names = [self.hold("codes", codes), self.hold("scales", tensor.scale.float()[:, 0])]
        names.append(self.hold("zeros", zero[:, 0].to(torch.uint8)))
        return self.add("DequantizeLinear", names, axis=axis)

    def _with_bias(self, operator: str, names: list[str]) -> None:
        if self.layer.bias is None:
            self.add(operator, names, self.y)
        else:
            self.add("Add", [self.add(operator, names), self.hold("bias", self.layer.bias.float())], self.y)

    def hold(self, name: str, value: Tensor) -> str:
        """A tensor of the file."""
        from onnx import numpy_helper

        full = f"{self.layer.name}.{name}"
        if all(one.name != full for one in self.initializers):
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value.detach().numpy()), full))
        return full

    def add(self, operator: str, names: list[str], output: str = "", domain: str = "", **attributes: Any) -> str:
        """An operator, and the name of its output."""
        from onnx import helper

        name = f"{self.prefix}/{operator}_{len(self.nodes)}"
        output = output or name
        self.nodes.append(helper.make_node(operator, names, [output], name=name, domain=domain, **attributes))
        return output


def _block(width: int, in_features: int) -> int:
    """The largest block that groups are made of; where one group is a whole row, of what may be padded."""
    if width >= in_features:
        return min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, 1 << (in_features - 1).bit_length()))
    return min(_LARGEST_BLOCK, width & -width)


def _whole_zeros(layer: GraphLayer) -> bool:
    zero = layer.tensor.zero
    return zero is None or bool((zero == zero.round()).all())


def _signed(codes: Tensor) -> Tensor:
    return (codes.int() - 128).to(torch.int8)


def _signed_zeros(layer: GraphLayer) -> Tensor | None:
    """Zeros by channel among codes less 128; ``None`` where they are 0."""
    tensor = layer.tensor
    if tensor.zero is None:
        shift = tensor.grid.midpoint - 128
        return torch.full((len(tensor.codes),), shift, dtype=torch.int8) if shift else None
    return (tensor.zero[:, 0].round() - 128).to(torch.int8)


def _zeros(zero: Tensor, bits: int) -> Tensor:
    """Zeros [out, blocks] as MatMulNBits takes them: packed in the bits of codes, or floats where one is no code."""
    if bool(((zero != zero.round()) | (zero < 0) | (zero >= 1 << bits)).any()):
        return zero
    codes = zero.to(torch.uint8)
    if bits == 8:
        return codes
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4


ONNX = Onnx()
