"""Quantized layers of a network that is to be traced, and nodes in their places."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.errors import FormatError
from goldstick.formats.graph import GraphLayer
from goldstick.nn.convolution import QuantizedConvolution
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.packed import PackedWeight
from goldstick.nn.parameter import PackedParameter, parameter_of

#: What nodes of layers are called; a format knows them by their domain.
_OPERATOR = "goldstick::layer"


class LayerNode(nn.Module):
    """One node in the place of a quantized layer.

    Args:
        index: Its place among the layers.
        layer: The layer.
    """

    def __init__(self, index: int, layer: QuantizedLinear | QuantizedConvolution) -> None:
        super().__init__()
        plain = int, float, str, tuple, list
        sizes = {name: value for name, value in vars(layer).items() if isinstance(value, plain)}
        vars(self).update(sizes)  # forwards read the attributes of the layers that they hold
        self.index, self.out_features = index, int(layer.weight_packed.shape[-2])
        self.weight = torch.empty(0, dtype=layer.weight_scale.dtype)  # forwards ask for its dtype
        self.bias = layer._parameters.get("bias")

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return self.node(x, [*x.shape[:-1], self.out_features])

    def node(self, x: Tensor, shape: list[Any]) -> Tensor:
        """The node, with the shape of what it gives."""
        found: Tensor = torch.onnx.ops.symbolic(
            _OPERATOR, (x,), {"index": self.index}, dtype=x.dtype, shape=shape, version=1
        )
        return found


class ConvolutionNode(LayerNode):
    """The same of a convolution, behind its padding where that is no plain one."""

    def __init__(self, index: int, layer: QuantizedConvolution) -> None:
        super().__init__(index, layer)
        own: Any = layer
        self.geometry = layer.convolution.settings[3]
        mode = "constant" if own.padding_mode == "zeros" else own.padding_mode
        self.before = (own._reversed_padding_repeated_twice, mode) if layer.padded_before else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, in, *sides] → [batch, out, *sides]."""
        if self.before is not None:
            x = F.pad(x, self.before[0], mode=self.before[1])
        sizes = zip(x.shape[2:], *(getattr(self.geometry, name) for name in _SIDES), strict=True)
        sides = [
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in sizes
        ]
        return self.node(x, [x.shape[0], self.out_features, *sides])


_SIDES = ("kernel", "stride", "padding", "dilation")


def stand_in_for_layers(model: nn.Module) -> list[GraphLayer]:
    """Put nodes in the places of a model's quantized layers, and give what they stand for.

    Raises:
        FormatError: A quantized weight is of a layer that is no plain linear layer or convolution, which is named.
    """
    layers: list[GraphLayer] = []
    for name, module in list(model.named_modules()):
        if not isinstance(module, PackedWeight):
            continue
        if isinstance(module, QuantizedLinear) and _plain(module, QuantizedLinear):
            layers.append(_linear(name, module))
            model.set_submodule(name, LayerNode(len(layers) - 1, module))
        elif isinstance(module, QuantizedConvolution) and _plain(module, QuantizedConvolution):
            layers.append(_convolution(name, module))
            model.set_submodule(name, ConvolutionNode(len(layers) - 1, module))
        else:
            site = parameter_of(name) if isinstance(module, PackedParameter) else name
            raise FormatError(
                f"{site} ({type(module).__name__}, {module.scheme.label}) has no operators in a graph: only "
                f"linear layers and convolutions with torch's own forward have. Leave it float: --exclude '{site}'."
            )
    return layers


def _plain(module: PackedWeight, kind: type[PackedWeight]) -> bool:
    """Whether nobody has written a forward of their own for it."""
    return "forward" not in module.__dict__ and type(module).forward is kind.forward


def _linear(name: str, module: QuantizedLinear) -> GraphLayer:
    if module.rotated:
        raise FormatError(
            f"{name} turns its input by a Hadamard transform when it runs (rotate's 'online: true'), for which a graph "
            "has no operator. Quantize its source without 'online'."
        )
    return GraphLayer(
        name=name,
        kind="linear",
        tensor=module.quantized_tensor(),
        scheme=module.scheme,
        bias=module.bias,
        input_scale=module.input_scale,
        input_zero=module.input_zero_point,
        input_multiplier=module.input_multiplier,
    )


def _convolution(name: str, module: QuantizedConvolution) -> GraphLayer:
    geometry = module.convolution.settings[3]
    sizes = {
        "strides": list(geometry.stride),
        "pads": [*geometry.padding, *geometry.padding],
        "dilations": list(geometry.dilation),
        "group": geometry.groups,
        "kernel_shape": list(geometry.kernel),
    }
    tensor = module.quantized_tensor()
    bias: Any = module._parameters["bias"]
    return GraphLayer(
        name=name,
        kind="convolution",
        tensor=tensor,
        scheme=module.scheme,
        bias=bias,
        input_scale=module.input_scale,
        input_zero=module.input_zero_point,
        kernel=(len(tensor.codes), geometry.in_channels // geometry.groups, *geometry.kernel),
        sizes=sizes,
    )
