"""A quantized convolution whose weight was laid out once for the CPU kernels."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from goldstick.kernels import cpu
from goldstick.kernels.coded_images import CodedImages, InputRange
from goldstick.kernels.convolution import Geometry
from goldstick.kernels.cpu.integer import THREADED_FROM
from goldstick.kernels.prepared import nothing_intercepts, runs_at_once, versions

_CPU = torch.device("cpu")

Bounds = tuple[float, float]
"""The least and the largest that an output may be."""
UNBOUNDED: Bounds = (-math.inf, math.inf)

Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of a layer: packed codes, scale, zero, bias, input scale, input zero."""
#: Most products of a depthwise output: as many of codes and 16-bit inputs fit into 32 bits.
_MOST_TAPS = 512


def reads_codes(x: Tensor) -> bool:
    """Whether these are images of codes, and a convolution may run on them right here (:func:`runs_at_once`)."""
    return type(x) is CodedImages and not x.requires_grad and nothing_intercepts()


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
        self._input = InputRange(0.0, 0)

    def __reduce__(self) -> tuple[type[PreparedConvolution], tuple[int, int, str, Geometry]]:
        return PreparedConvolution, self.settings  # a copy prepares itself

    def __call__(
        self, x: Tensor, weight: Operands, bounds: Bounds = UNBOUNDED, handed_by: InputRange | None = None
    ) -> Tensor | None:
        """y = f(x) ∗ w + bias within bounds, or ``None`` where the operator has to do it.

        Args:
            x: The input, or :class:`CodedImages` of it.
            weight: The operands.
            bounds: Between what y is kept.
            handed_by: By what y is rounded for the one that reads it; y is :class:`CodedImages` then.
        """
        if type(x) is CodedImages:
            found = self._run(x, x.codes, weight, bounds, handed_by) if x.floats is None and reads_codes(x) else None
            if found is not None:
                return found
            x = x.as_floats()
        return self.run(x, weight, bounds, handed_by) if runs_at_once(x) else None

    @property
    def copied_bytes(self) -> int:
        """Bytes of the codes that are kept once more; 0 before the first call."""
        return 0 if self._layer is None else int(self._layer.bytes)

    def input_range(self, weight: Operands) -> InputRange | None:
        """By what a static input is rounded, where codes of it can be read; ``None`` where they cannot."""
        _, _, activation, geometry = self.settings
        several = self._depthwise and weight[1].shape[0] != geometry.in_channels
        if activation != "int8-tensor" or not self._sided or several or weight[1].dtype is not torch.float32:
            return None
        return self._input if self._ready(weight) is not None and 0 < self._input.scale < math.inf else None

    def run(
        self, x: Tensor, weight: Operands, bounds: Bounds = UNBOUNDED, handed_by: InputRange | None = None
    ) -> Tensor | None:
        """The same for an input that is known to be a plain tensor."""
        if not x.is_cpu or x.dtype is not weight[1].dtype or x.ndim != len(self.settings[-1].kernel) + 2:
            return None
        return self._run(x, None, weight, bounds, handed_by)

    def _run(
        self, x: Any, codes: Tensor | None, weight: Operands, bounds: Bounds, handed_by: InputRange | None
    ) -> Tensor | None:
        # Where codes are read, x gives their sizes and the order in memory of its floats.
        layer = self._ready(weight)
        _, scale, _, bias, _, _ = weight
        geometry, sides, out = self.settings[-1], x.shape[2:], int(scale.shape[0])
        after = geometry.sides_after(sides)
        if layer is None or x.shape[1] != geometry.in_channels or min(after) < 1 or min(sides) < 1:
            return None
        several = self._depthwise and out != geometry.in_channels
        if codes is not None and (several or self._input != x.range):
            return None
        if several or not self._sided or scale.dtype is not torch.float32 or not len(x):
            handed_by = None
        last = self._sided and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        as_given = torch.channels_last if last else torch.contiguous_format
        inner = torch.contiguous_format if several else as_given
        if self._depthwise and (codes is not None or handed_by is not None):
            inner = torch.channels_last
        read = x.contiguous(memory_format=inner) if codes is None else codes
        if handed_by is None:
            y = torch.empty((len(x), out, *after), dtype=scale.dtype, device=_CPU, memory_format=inner)
        else:
            y = torch.empty((len(x), *after, out), dtype=torch.uint8, device=_CPU)
        if y.numel() == 0:
            return y
        threads = torch.get_num_threads() if y.numel() * geometry.columns >= THREADED_FROM else 1
        height, width = sides if self._sided else (1, sides[0])
        ran = layer.run(
            read.data_ptr(),
            y.data_ptr(),
            scale.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            len(x),
            height,
            width,
            codes is not None or inner is torch.channels_last,
            handed_by is not None or inner is torch.channels_last,
            cpu.PRECISIONS[scale.dtype],
            *self._input,
            *bounds,
            codes is not None,
            handed_by is not None,
            *(handed_by or (0.0, 0)),
            threads,
        )
        if not ran:
            return self._run(x, codes, weight, bounds, None) if handed_by is not None else None
        return y.contiguous(memory_format=as_given) if handed_by is None else CodedImages(y, handed_by, as_given)

    def _ready(self, weight: Operands) -> Any:
        """The layer in C++, or ``None`` where it cannot run there; laid out anew for other codes or places."""
        packed, _, _, _, input_scale, input_zero = weight
        laid = packed, input_scale, input_zero
        counts = versions(laid)
        if None in counts or not _fit(weight):
            return None
        places = *(None if one is None else one.data_ptr() for one in laid), *counts
        if places != self._places or self._packed is None or self._packed() is not packed:
            self._layer = self._prepared(weight)
            self._places = places
            self._packed = weakref.ref(packed, self._forget)
        return self._layer

    def _forget(self, _: object) -> None:
        self._layer, self._places = None, ()

    def _prepared(self, weight: Operands) -> Any:
        packed, _, _, _, input_scale, input_zero = weight
        bits, group_size, activation, geometry = self.settings
        if cpu.missing_extension() or group_size < geometry.columns:
            return None
        if self._depthwise and geometry.columns > _MOST_TAPS:
            return None
        self._input = InputRange(
            0.0 if input_scale is None else input_scale.item(), 0 if input_zero is None else int(input_zero)
        )
        kernel, stride, dilation = (_two(sides, 1) for sides in (geometry.kernel, geometry.stride, geometry.dilation))
        above, beside = _two(geometry.padding, 0)
        padding = [above, above, beside, beside]
        return cpu._C.PreparedConvolution(
            packed.detach(), bits, geometry.in_channels, geometry.groups, kernel, stride, dilation, padding, activation
        )


def _fit(weight: Operands) -> bool:
    packed, scale, zero, bias, input_scale, input_zero = weight
    if zero is not None or scale.dtype not in cpu.PRECISIONS or (bias is not None and bias.dtype != scale.dtype):
        return False
    tensors = packed, scale, bias, input_scale, input_zero
    return all(one is None or (one.is_cpu and one.is_contiguous() and not one.requires_grad) for one in tensors)


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
