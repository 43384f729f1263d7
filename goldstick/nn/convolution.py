"""QuantizedConvolution: y = x ∗ Ŵ + b on packed weights, along one or two sides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.kernels.coded_images import CodedImages, InputRange
from goldstick.kernels.convolution import Geometry
from goldstick.kernels.prepared import runs_at_once
from goldstick.kernels.prepared_convolution import PreparedConvolution, reads_codes
from goldstick.nn.fused.epilogue import Epilogue
from goldstick.nn.input_range import hold_input_range
from goldstick.nn.packed import PackedWeight, bias_of

_PLAIN: tuple[Any, ...] = (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward)


class QuantizedConvolution(PackedWeight):
    """Convolution on a packed weight, through the operator ``goldstick::quantized_convolution``.

    Stands for ``nn.Conv1d`` and ``nn.Conv2d``. The scheme's dynamic input has one scale for each sample.

    Attributes:
        epilogue: What it does in the place of modules behind it.
    """

    stands_for = frozenset({nn.Conv1d, nn.Conv2d})
    input_scale: Tensor | None
    input_zero_point: Tensor | None
    padded_before: bool
    convolution: PreparedConvolution
    epilogue: Epilogue | None = None

    def hold(self, tensor: QuantizedTensor, scheme: Scheme, layout: Layout, shape: torch.Size, **inputs: Any) -> None:
        """Take a quantized weight in, with the scale and the zero of a static input."""
        refused = {name: inputs.get(name) for name in ("input_multiplier", "rotated")}
        super().hold(tensor, scheme, layout, shape, **refused)
        hold_input_range(self, tensor, scheme, inputs.get("input_scale"), inputs.get("input_zero"))
        self.padded_before, geometry = _geometry_of(self)
        bits, group_size, _, activation = self.prepared.settings
        self.convolution = PreparedConvolution(bits, group_size, activation, geometry)

    @property
    def packed_names(self) -> frozenset[str]:
        """Names of the tensors that make up the weight and what becomes of its input."""
        return super().packed_names | {"input_scale", "input_zero_point"}

    @property
    def only_multiplies(self) -> bool:
        """Whether a call is the product and nothing else."""
        own: Any = self
        inherited = type(own).forward is QuantizedConvolution.forward and "forward" not in own.__dict__
        return inherited and type(own)._conv_forward in _PLAIN and self.grid.plain

    def forward(self, input: Tensor) -> Tensor:
        """[batch, in, *sides] or [in, *sides] → the same with ``out`` channels."""
        own: Any = self
        if type(own)._conv_forward not in _PLAIN or not self.grid.plain:  # more than the product
            found: Tensor = super().forward(input)
            return found
        return self.product_with(input, bias_of(self))

    def input_range(self) -> InputRange | None:
        """By what a static input is rounded, where this layer reads codes of it; ``None`` where it reads floats."""
        own: Any = self
        if own.padding_mode != "zeros":
            return None
        buffers = self._buffers
        inputs = buffers["input_scale"], buffers["input_zero_point"]
        packed, scale = buffers["weight_packed"], self._parameters["weight_scale"]
        assert packed is not None and scale is not None
        weight = packed, scale, buffers["weight_zero_point"], bias_of(self), *inputs
        return self.convolution.input_range(weight)

    def product_with(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x ∗ Ŵ + b on the packed rows, with the input padded and quantized as the layer says."""
        own: Any = self
        if type(x) is CodedImages and is_dynamo_compiling():
            x = x.as_floats()
        buffers = self._buffers  # the module's own look-up takes longer
        packed, scale = buffers["weight_packed"], self._parameters["weight_scale"]
        assert packed is not None and scale is not None
        given, prepared = x.dtype, self.convolution
        geometry = prepared.settings[3]
        if given is not scale.dtype and torch.is_autocast_enabled(x.device.type):
            x = x.to(scale.dtype)
        alone = x.ndim == len(geometry.kernel) + 1
        if alone:
            x = x.unsqueeze(0)
        if self.padded_before:
            mode = "constant" if own.padding_mode == "zeros" else own.padding_mode
            x = F.pad(x, own._reversed_padding_repeated_twice, mode=mode)
        inputs = buffers["input_scale"], buffers["input_zero_point"]
        weight = packed, scale, buffers["weight_zero_point"], bias, *inputs
        epilogue, more = self.epilogue, None
        if epilogue is not None and (runs_at_once(x) or reads_codes(x)) and not self._forward_hooks:
            more = epilogue.operands(weight)
        if epilogue is None or more is None:
            found = prepared(x, weight)
        else:
            handed_by = None if alone or x.dtype is not given else epilogue.handed_by()
            found = prepared(x, more, epilogue.bounds, handed_by)
        finished = more is not None and found is not None
        if found is None:
            x = x.as_floats() if type(x) is CodedImages else x
            bits, group_size, activation, _ = prepared.settings
            found = torch.ops.goldstick.quantized_convolution(
                x,
                *weight[:4],
                bits,
                group_size,
                activation,
                geometry.in_channels,
                geometry.groups,
                geometry.kernel,
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                *inputs,
            )
        found = found.squeeze(0) if alone else found
        found = found if found.dtype is given else found.to(given)
        if epilogue is not None and finished:
            epilogue.mark(found)
        return found


def _geometry_of(layer: Any) -> tuple[bool, Geometry]:
    """Whether its input is padded before the convolution, and the sizes of what follows."""
    amounts = layer._reversed_padding_repeated_twice  # before and behind, of the last side first
    padding = tuple(reversed(amounts[::2]))
    before = layer.padding_mode != "zeros" or list(amounts[::2]) != list(amounts[1::2])
    return before, Geometry(
        in_channels=layer.in_channels,
        groups=layer.groups,
        kernel=tuple(layer.kernel_size),
        stride=tuple(layer.stride),
        padding=(0,) * len(padding) if before else padding,
        dilation=tuple(layer.dilation),
    )
