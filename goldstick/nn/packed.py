"""PackedWeight: a quantized weight in its run-time form, and the base of every module that runs on one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the goldstick:: operators)
from goldstick.kernels.prepared import PreparedLinear


class PackedWeight(nn.Module):
    """Holds a quantized weight as packed rows.

    Buffers: ``weight_packed`` int32 [..., out, words], ``weight_scale`` [..., out, groups], and for asymmetric grids
    ``weight_zero_point`` float32 [..., out, groups] (perhaps fractional). The zeros stay float32 whatever dtype the
    module is cast to: as with the codes, nothing of them is lost by casting a model down and up again.

    Args:
        tensor: The codes; packed here.
        scheme: What the layer became.

    Raises:
        QuantizationError: The columns lie in an order of their own, which only linear layers undo.
    """

    takes_input_order = False

    weight_packed: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme) -> None:
        super().__init__()
        if tensor.input_order is not None and not self.takes_input_order:
            raise QuantizationError(f"A {type(self).__name__} runs on columns in the order of its inputs only.")
        self.scheme = scheme
        self.in_features = tensor.in_features
        self.out_features = tensor.codes.shape[-2]
        activation = "" if scheme.activation is None else f"int8-{scheme.activation.granularity}"
        self.prepared = PreparedLinear(
            tensor.grid.bits, tensor.grid.group_width(self.in_features), self.in_features, activation
        )
        self.register_buffer("weight_packed", pack_rows(tensor.codes, tensor.grid.bits))
        self.register_buffer("weight_scale", tensor.scale)
        self.register_buffer("weight_zero_point", None if tensor.zero is None else tensor.zero.float())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedWeight:
        zero = self.weight_zero_point
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if zero is not None and self.weight_zero_point is not None and self.weight_zero_point.dtype != zero.dtype:
            self.weight_zero_point = zero.to(self.weight_zero_point.device)
        return self

    @property
    def grid(self) -> Grid:
        """The grid of the weight."""
        return self.scheme.weight

    def quantized_tensor(self) -> QuantizedTensor:
        """The weight as codes, scale and zero."""
        codes = unpack_rows(self.weight_packed, self.grid.bits, self.in_features)
        return QuantizedTensor(codes=codes, scale=self.weight_scale, zero=self.weight_zero_point, grid=self.grid)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, for model code that asks a layer for its weight, dtype or device."""
        return self.dequantized()

    def dequantized(self) -> Tensor:
        """The weight as numbers, [..., out, in], in the scale's dtype."""
        return self._dequantize(self.weight_packed, self.weight_scale, self.weight_zero_point)

    def _dequantize(self, packed: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        width = self.grid.group_width(self.in_features)
        matrices = (
            packed.flatten(0, -2),
            scale.flatten(0, -2),
            None if zero is None else zero.flatten(0, -2),
        )
        result: Tensor = torch.ops.goldstick.dequantize(*matrices, self.grid.bits, width, self.in_features)
        return result.reshape(*packed.shape[:-1], self.in_features)

    def extra_repr(self) -> str:
        """Shape and scheme, for printing the model."""
        return f"{self.in_features} → {self.out_features}, {self.scheme.label}"


def packed_paths(model: nn.Module) -> set[str]:
    """Every path of every module on a packed weight; one that is registered in several places has several."""
    return {name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, PackedWeight)}
