"""QuantizedLinear: y = (x ∘ m)·Ŵᵀ + b on packed weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from goldstick.core.layout import TRANSPOSED_LINEAR_CLASSES, Layout
from goldstick.core.qtensor import QuantizedTensor, in_place
from goldstick.core.scheme import Scheme
from goldstick.core.stand_in import foreign_forward
from goldstick.errors import QuantizationError
from goldstick.kernels.hadamard_op import hadamard
from goldstick.nn.input_range import hold_input_range
from goldstick.nn.packed import PackedWeight, bias_of

if TYPE_CHECKING:
    from goldstick.nn.fused.fused_linears import FusedLinears


class QuantizedLinear(PackedWeight):
    """Linear layer on a packed weight, through the operator ``goldstick::quantized_linear``.

    Stands for ``nn.Linear`` and for linears that store [in, out].

    Args:
        tensor: Codes [out, in]. If they have an ``input_order``, the input's channels are put into it in every call; it
            is kept as the buffer ``input_order``, int32 [in]. Those that are turned are put into it afterwards.
        scheme: Grids of the weight and, with 8-bit activations, of the input.
        bias: float [out], or ``None``.
        input_scale: Scale of the input, float [] or [1], given exactly when its grid is static. Kept as a buffer [1] in
            the dtype of the weight's scales.
        input_zero: Its zero among the signed codes, int8 [] or [1], given exactly when that grid is asymmetric.
        input_multiplier: m, float [in], or ``None`` for 1: what the input is multiplied by before anything else, its
            quantization included. Kept as a buffer in the dtype of the weight's scales.
        rotated: n, by whose Hadamard transform the input is turned before its quantization, block by block; 0 for none.

    Raises:
        QuantizationError: The input's scale or zero is missing, or given where there is no use for it; m has another
            shape than [in]; or n does not divide the inputs, or stands beside m.
    """

    bias: nn.Parameter | None
    input_scale: Tensor | None
    input_zero_point: Tensor | None
    input_multiplier: Tensor | None
    input_order: Tensor | None
    takes_input_order = True
    stands_for = frozenset({nn.Linear, *TRANSPOSED_LINEAR_CLASSES})
    rotated: int = 0
    shared: FusedLinears | None = None  # what it runs together with; see nn/fused/fused_linears.py

    def __init__(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        bias: Tensor | None = None,
        *,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
        rotated: int = 0,
    ) -> None:
        nn.Module.__init__(self)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))
        inputs = {"input_scale": input_scale, "input_zero": input_zero, "input_multiplier": input_multiplier}
        self.hold(tensor, scheme, Layout.LINEAR, tensor.codes.shape, **inputs, rotated=rotated)

    def hold(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        layout: Layout,
        shape: torch.Size,
        *,
        rotated: int | None = None,
        **inputs: Tensor | None,
    ) -> None:
        """Take a quantized weight in, with what is known of its input: the arguments of the class."""
        super().hold(tensor, scheme, layout, shape)
        hold_input_range(self, tensor, scheme, inputs.get("input_scale"), inputs.get("input_zero"))
        input_multiplier = inputs.get("input_multiplier")
        if input_multiplier is not None and input_multiplier.shape != (self.columns,):
            raise QuantizationError(
                f"A layer of {self.columns} inputs has as many multipliers, not {list(input_multiplier.shape)}."
            )
        multiplier = None if input_multiplier is None else input_multiplier.to(tensor.scale)
        self.register_buffer("input_multiplier", multiplier)
        if rotated and (self.columns % rotated or multiplier is not None):
            raise QuantizationError(
                f"A layer of {self.columns} inputs cannot turn them in blocks of {rotated}: these must divide them, "
                "and they are not multiplied as well."
            )
        self.rotated = rotated or 0
        self.register_buffer("input_order", None if tensor.input_order is None else tensor.input_order.int())

    @property
    def packed_names(self) -> frozenset[str]:
        """Names of the tensors that make up the weight and what becomes of its input."""
        return super().packed_names | {"input_scale", "input_zero_point", "input_multiplier", "input_order"}

    def quantized_tensor(self) -> QuantizedTensor:
        """The weight as codes, scale and zero."""
        return dataclasses.replace(super().quantized_tensor(), input_order=self.input_order)

    def dequantized(self) -> Tensor:
        """The weight as numbers, [out, in], in the scale's dtype."""
        return in_place(super().dequantized(), self.input_order)

    def stored_numbers(self) -> Tensor:
        """The dequantized weight as the float layer had it: what is done to the input is done to its columns."""
        matrix = self.dequantized()
        if self.rotated:  # H is symmetric: (x·H)·Ŵᵀ = x·(Ŵ·H)ᵀ
            matrix = hadamard(matrix, self.rotated)
        if self.input_multiplier is not None:
            matrix = matrix * self.input_multiplier
        return self.stored_as.from_matrix(matrix, self.stored_shape)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        if self.shared is not None and not torch.compiler.is_compiling():
            return self.shared.output(self, input)
        return self.alone(input)

    def ready(self) -> Any:
        """The layer in C++, which takes dense inputs as they are; ``None`` where there is none."""
        buffers = self._buffers
        packed, zero = buffers["weight_packed"], buffers["weight_zero_point"]
        scale = self._parameters["weight_scale"]
        if packed is None or scale is None or not packed.is_cpu:
            return None
        if self.rotated or buffers["input_multiplier"] is not None or buffers["input_order"] is not None:
            return None
        if "bias" not in self._parameters:  # it is computed in every call
            return None
        inputs = buffers["input_scale"], buffers["input_zero_point"]
        return self.prepared.ready(
            (packed, scale, zero, self._parameters["bias"], *inputs, buffers["weight_global_scale"])
        )

    def alone(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out] from this layer's own weight, whatever it shares its input with."""
        return self.multiplied(x, bias_of(self))

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """x·Ŵᵀ + b, perhaps with another bias than the layer's own, for forwards that multiply by themselves.

        ``None`` where that is not the layer's own forward and inputs have a static range: it is that of the layer's
        calls, and x may have another.
        """
        own = foreign_forward(self) or type(self).forward
        called = own.__module__.partition(".")[0] == __name__.partition(".")[0]
        return None if called and self.scheme.static_input else self.multiplied(x, bias)

    def multiplied(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x·Ŵᵀ + b with what becomes of the input, perhaps with another bias than the layer's own."""
        buffers = self._buffers  # the module's own look-up takes longer
        x = self.prepared_input(x)
        return packed_linear(self, x, bias, buffers["input_scale"], buffers["input_zero_point"])

    def prepared_input(self, x: Tensor) -> Tensor:
        """What becomes of the input [..., in] before it is quantized and multiplied."""
        buffers = self._buffers
        if (multiplier := buffers["input_multiplier"]) is not None:
            x = x * multiplier
        if self.rotated:
            x = hadamard(x, self.rotated)
        return x if (order := buffers["input_order"]) is None else x.index_select(-1, order)


def packed_linear(
    weight: PackedWeight,
    x: Tensor,
    bias: Tensor | None,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
) -> Tensor:
    """x·Ŵᵀ + b for a packed weight that may belong to another module."""
    buffers = weight._buffers  # the module's own look-up takes longer
    packed, zero = buffers["weight_packed"], buffers["weight_zero_point"]
    scale = weight._parameters["weight_scale"]
    assert packed is not None and scale is not None
    given = x.dtype
    if given is not scale.dtype and torch.is_autocast_enabled(x.device.type):
        x = x.to(scale.dtype)  # the layer computes in its own dtype, whatever others are told
    global_scale = buffers["weight_global_scale"]
    found = weight.prepared(x, (packed, scale, zero, bias, input_scale, input_zero, global_scale))
    if found is not None:
        return found if found.dtype is given else found.to(given)
    further = input_scale, input_zero, weight.prepared.element, global_scale
    result: Tensor = torch.ops.goldstick.quantized_linear(
        x, packed, scale, zero, bias, *weight.prepared.settings, *further
    )
    return result if result.dtype is given else result.to(given)
