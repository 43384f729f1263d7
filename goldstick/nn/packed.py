"""PackedWeight: a quantized weight in its run-time form, and the base of every module that runs on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the goldstick:: operators)
from goldstick.kernels.prepared import PreparedLinear
from goldstick.nn.lazy_weight import LazyWeight, refuse_numbers


class PackedWeight(nn.Module):
    """Holds a quantized weight as packed rows, in the place of the parameter ``weight``.

    ``weight_packed``, a buffer int32 [..., out, words]; ``weight_scale``, a parameter [..., out, groups], so that
    whoever iterates over a model's parameters finds its dtype and device; and for asymmetric grids the buffer
    ``weight_zero_point`` float32 [..., out, groups] (perhaps fractional); where scales have a scale,
    ``weight_global_scale`` float32 [..., 1, 1], or [..., out, 1 or 2, superblocks]. These stay float32 whatever dtype
    the module is cast to: as with the codes, nothing of them is lost by casting a model down and up again.

    In a network it is mixed into the class of the layer that it replaces: see :mod:`goldstick.nn.derived`.

    Args:
        tensor: The codes; packed here.
        scheme: What the layer became.

    Raises:
        QuantizationError: The columns lie in an order of their own, which only linear layers undo.
    """

    takes_input_order = False
    #: Buffers that no cast changes.
    kept_in_float32: tuple[str, ...] = ("weight_zero_point", "weight_global_scale")
    #: Classes, or their names, in whose place its own forward computes.
    stands_for: frozenset[type[nn.Module] | str] = frozenset()
    _made_of: tuple[type[PackedWeight], type[nn.Module]]

    scheme: Scheme
    stored_as: Layout
    stored_shape: torch.Size
    prepared: PreparedLinear
    in_features: int
    out_features: int
    weight_packed: Tensor
    weight_scale: nn.Parameter
    weight_zero_point: Tensor | None
    weight_global_scale: Tensor | None

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme) -> None:
        nn.Module.__init__(self)
        self.hold(tensor, scheme, Layout.LINEAR, tensor.codes.shape)

    def hold(self, tensor: QuantizedTensor, scheme: Scheme, layout: Layout, shape: torch.Size, **inputs: Any) -> None:
        """Take a quantized weight in.

        Args:
            tensor: Its codes [..., out, in].
            scheme: What the layer became.
            layout: How the parameter that it replaces stores this matrix.
            shape: Shape of that parameter.
            inputs: What linear layers are told of their input; nothing to others.
        """
        if any(value is not None for value in inputs.values()):
            raise QuantizationError(f"A {type(self).__name__} does nothing to its input.")
        if tensor.input_order is not None and not self.takes_input_order:
            raise QuantizationError(f"A {type(self).__name__} runs on columns in the order of its inputs only.")
        self.scheme, self.stored_as, self.stored_shape = scheme, layout, torch.Size(shape)
        columns = tensor.in_features
        activation = "" if scheme.activation is None else scheme.activation.input_name
        grid, width = tensor.grid, min(tensor.grid.group_width(columns), columns)
        self.prepared = PreparedLinear(grid.bits, width, columns, activation, element=grid.element)
        for name, value in (("in_features", columns), ("out_features", tensor.codes.shape[-2])):
            self.__dict__.setdefault(name, value)  # a layer that has such an attribute keeps it
        self.register_buffer("weight_packed", pack_rows(tensor.codes, tensor.grid.bits))
        self.register_parameter("weight_scale", nn.Parameter(tensor.scale.detach(), requires_grad=False))
        self.register_buffer("weight_zero_point", None if tensor.zero is None else tensor.zero.float())
        self.register_buffer("weight_global_scale", tensor.global_scale)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, Tensor):
            refuse_numbers(self)
        if name == "weight_scale" and isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            value = nn.Parameter(value, requires_grad=False)
        super().__setattr__(name, value)

    @property
    def packed_names(self) -> frozenset[str]:
        """Names of the tensors that make up the weight and what becomes of its input."""
        return frozenset({"weight_packed", "weight_scale", *self.kept_in_float32})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedWeight:
        before = {name: self._buffers[name] for name in self.kept_in_float32}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            after = self._buffers[name]
            if kept is not None and after is not None and after.dtype != kept.dtype:
                self._buffers[name] = kept.to(after.device)
        return self

    @property
    def grid(self) -> Grid:
        """The grid of the weight."""
        return self.scheme.weight

    @property
    def columns(self) -> int:
        """Columns of the weight matrix."""
        return self.prepared.settings[2]

    def quantized_tensor(self) -> QuantizedTensor:
        """The weight as codes, scale and zero."""
        codes = unpack_rows(self.weight_packed, self.grid.bits, self.columns)
        scale = self.weight_scale.detach()
        return QuantizedTensor(
            codes=codes,
            scale=scale,
            zero=self.weight_zero_point,
            grid=self.grid,
            global_scale=self.weight_global_scale,
        )

    @property
    def weight(self) -> Tensor:
        """The weight as the replaced parameter stored it, for forwards that read it; see :class:`LazyWeight`."""
        return self.stored_numbers() if torch.compiler.is_compiling() else LazyWeight(self)

    def stored_numbers(self) -> Tensor:
        """The dequantized weight in the shape of the parameter that it replaces."""
        return self.stored_as.from_matrix(self.dequantized(), self.stored_shape)

    def dequantized(self) -> Tensor:
        """The weight as numbers, [..., out, in], in the scale's dtype."""
        return self._dequantize(self.weight_packed, self.weight_scale, self.weight_zero_point, self.weight_global_scale)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """x·Ŵᵀ + b on the packed rows, with the input quantized as the scheme says; ``None`` where there is no such."""
        return None

    def _dequantize(
        self, packed: Tensor, scale: Tensor, zero: Tensor | None, global_scale: Tensor | None = None
    ) -> Tensor:
        bits, width, columns, _ = self.prepared.settings
        if global_scale is not None and self.grid.superblock is not None:
            global_scale = global_scale.flatten(0, -3)
        elif global_scale is not None and packed.ndim > 2:  # of every row
            global_scale = global_scale.expand(*packed.shape[:-1], 1).flatten(0, -2)
        matrices = (
            packed.flatten(0, -2),
            scale.flatten(0, -2),
            None if zero is None else zero.flatten(0, -2),
        )
        settings = bits, width, columns, self.grid.element
        result: Tensor = torch.ops.goldstick.dequantize(*matrices, *settings, global_scale)
        return result.reshape(*packed.shape[:-1], self.columns)

    def extra_repr(self) -> str:
        """Shape and scheme, for printing the model."""
        return f"{self.columns} → {self.weight_packed.shape[-2]}, {self.scheme.label}"


def bias_of(module: nn.Module) -> Tensor | None:
    """The bias of a layer: its parameter, or what a parametrization computes in every call."""
    own: Any = module
    if "bias" in own._parameters:  # the module's own look-up takes longer
        found: Tensor | None = own._parameters["bias"]
        return found
    computed: Tensor | None = own.bias
    return computed


def packed_tensors(model: nn.Module) -> Iterator[str]:
    """Names of all tensors of packed weights, wherever they are registered."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PackedWeight):
            yield from (f"{path}.{name}" if path else name for name in module.packed_names)
