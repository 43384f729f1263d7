"""A quantized convolution whose weight was laid out once for the CPU kernels."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from goldstick.kernels import cpu
from goldstick.kernels.convolution import Geometry
from goldstick.kernels.cpu.integer import THREADED_FROM
from goldstick.kernels.prepared import runs_at_once, versions

_CPU = torch.device("cpu")

Bounds = tuple[float, float]
"""The least and the largest that an output may be."""
UNBOUNDED: Bounds = (-math.inf, math.inf)

Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of a layer: packed codes, scale, zero, bias, input scale, input zero."""
#: Most products of a depthwise output: as many of codes and 16-bit inputs fit into 32 bits.
_MOST_TAPS = 512


class PreparedConvolution:
    """What ``goldstick::quantized_convolution`` does with one weight on the CPU, on codes.

    The codes are kept once more, a byte for each, in the order in which the kernels read them; the tensors' versions
    tell of changes, so not of those made through ``.data``. There is none of asymmetric weights, of scales for groups
    of columns, and of tensors that have no version: ``None`` says that the operator has to dequantize.

    Args:
        bits: Width of a code.
        group_size: Columns that share a scale.
        activation: How the input is quantized, as the operator takes it.
        geometry: The sizes.
    """

    def __init__(self, bits: int, group_size: int, activation: str, geometry: Geometry) -> None:
        self.settings = bits, group_size, activation, geometry
        self._places: tuple[object, ...] = ()
        self._layer: Any = None
        self._packed: weakref.ref[Tensor] | None = None
        self._sided = len(geometry.kernel) == 2
        self._depthwise = 1 < geometry.groups == geometry.in_channels
        self._input = 0.0, 0

    def __reduce__(self) -> tuple[type[PreparedConvolution], tuple[int, int, str, Geometry]]:
        return PreparedConvolution, self.settings  # a copy prepares itself

    def __call__(self, x: Tensor, weight: Operands, bounds: Bounds = UNBOUNDED) -> Tensor | None:
        """y = f(x) ∗ w + bias within bounds, or ``None`` where the operator has to do it."""
        return self.run(x, weight, bounds) if runs_at_once(x) else None

    @property
    def copied_bytes(self) -> int:
        """Bytes of the codes that are kept once more; 0 before the first call."""
        return 0 if self._layer is None else int(self._layer.bytes)

    def run(self, x: Tensor, weight: Operands, bounds: Bounds = UNBOUNDED) -> Tensor | None:
        """The same for an input that is known to be a plain tensor."""
        _, scale, _, bias, _, _ = weight
        geometry = self.settings[-1]
        layer = self._ready(weight) if x.is_cpu else None
        sides = x.shape[2:]
        if layer is None or x.dtype is not scale.dtype or x.ndim != len(geometry.kernel) + 2:
            return None
        after = geometry.sides_after(sides)
        if x.shape[1] != geometry.in_channels or min(after) < 1 or min(sides) < 1:
            return None
        out = int(scale.shape[0])
        last = self._sided and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        as_given = torch.channels_last if last else torch.contiguous_format
        inner = torch.contiguous_format if self._depthwise and out != geometry.in_channels else as_given
        x = x.contiguous(memory_format=inner)
        y = torch.empty((x.shape[0], out, *after), dtype=scale.dtype, device=_CPU, memory_format=inner)
        if y.numel() == 0:
            return y
        threads = torch.get_num_threads() if y.numel() * geometry.columns >= THREADED_FROM else 1
        height, width = sides if self._sided else (1, sides[0])
        ran = layer.run(
            x.data_ptr(),
            y.data_ptr(),
            scale.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            x.shape[0],
            height,
            width,
            inner is torch.channels_last,
            cpu.PRECISIONS[scale.dtype],
            *self._input,
            *bounds,
            threads,
        )
        return y.contiguous(memory_format=as_given) if ran else None

    def _ready(self, weight: Operands) -> Any:
        places: tuple[object, ...] = tuple(
            None if one is None else (one.data_ptr(), one.dtype, one.requires_grad) for one in weight
        )
        packed, _, _, _, input_scale, input_zero = weight
        places = (*places, *versions((packed, input_scale, input_zero)))
        if places != self._places or self._packed is None or self._packed() is not packed:
            self._layer = self._prepared(weight)
            self._places = places
            self._packed = weakref.ref(packed, self._forget)
        return self._layer

    def _forget(self, _: object) -> None:
        self._layer, self._places = None, ()

    def _prepared(self, weight: Operands) -> Any:
        packed, scale, zero, bias, input_scale, input_zero = weight
        bits, group_size, activation, geometry = self.settings
        tensors = [one for one in (packed, scale, bias, input_scale, input_zero) if one is not None]
        if (
            cpu.missing_extension()
            or zero is not None
            or group_size < geometry.columns
            or scale.dtype not in cpu.PRECISIONS
        ):
            return None
        if not all(one.is_cpu and one.is_contiguous() and not one.requires_grad for one in tensors):
            return None
        if None in versions((packed, input_scale, input_zero)) or (bias is not None and bias.dtype != scale.dtype):
            return None
        if self._depthwise and geometry.columns > _MOST_TAPS:
            return None
        self._input = (
            0.0 if input_scale is None else input_scale.item(),
            0 if input_zero is None else int(input_zero),
        )
        kernel, stride, dilation = (_two(sides, 1) for sides in (geometry.kernel, geometry.stride, geometry.dilation))
        above, beside = _two(geometry.padding, 0)
        padding = [above, above, beside, beside]
        return cpu._C.PreparedConvolution(
            packed.detach(), bits, geometry.in_channels, geometry.groups, kernel, stride, dilation, padding, activation
        )


def _two(sides: tuple[int, ...], first: int) -> list[int]:
    """Sizes for both sides; a sequence has one row."""
    return [first] * (2 - len(sides)) + list(sides)


_PREPARED: Any = WeakTensorKeyDictionary()


def prepared_for(
    packed: Tensor, bits: int, group_size: int, activation: str, geometry: Geometry
) -> PreparedConvolution:
    """The prepared convolution of a weight, kept as long as the weight is, for callers that keep none themselves."""
    found: dict[Any, PreparedConvolution] = _PREPARED.setdefault(packed, {})
    key = bits, group_size, activation, geometry
    if key not in found:
        found[key] = PreparedConvolution(*key)
    return found[key]
