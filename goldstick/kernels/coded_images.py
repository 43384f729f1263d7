"""Images that one convolution hands to the next as the codes that the next one reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from goldstick.core.notices import RoundedImagesWarning
from goldstick.errors import KernelError

_SHIFT = 128  # how much larger a byte is than its code


class InputRange(NamedTuple):
    """By what the input of a layer is rounded to 8 bits: q = round(clamp(x / scale + zero, −128, 127))."""

    scale: float
    zero: int


class CodedImages(Tensor):
    """Float images [batch, channels, height, width] of which only the codes are there.

    The layer that they were rounded for reads the codes. Any other operator is given what they stand for,
    (q − zero) · scale, which is found once, so that a change in place is a change of these images; the layer then
    rounds that. So is what reads memory, copies or stores them. Zeros around the images are the same in both, and stay
    codes.

    Attributes:
        codes: uint8 [batch, height, width, channels], q + 128.
        range: By what they were rounded.
        order: The order in memory that their floats have.
        floats: What they stand for, once an operator has asked; ``None`` before.
    """

    codes: Tensor
    range: InputRange
    order: torch.memory_format
    floats: Tensor | None
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, codes: Tensor, range: InputRange, order: torch.memory_format) -> CodedImages:
        make: Callable[..., CodedImages] = Tensor._make_wrapper_subclass
        sizes, strides = _sizes_and_strides(codes, order)
        found = make(cls, sizes, strides=strides, dtype=torch.float32, device=codes.device)
        found.codes, found.range, found.order, found.floats = codes, range, order, None
        return found

    def as_floats(self) -> Tensor:
        """What the codes stand for."""
        if self.floats is None:
            scale, zero = self.range
            found = (self.codes.to(torch.float32) - (_SHIFT + zero)) * scale
            found = found.permute(0, 3, 1, 2).contiguous(memory_format=self.order)
            # Where a side is 1, torch lets strides be any. The compiler knows none of these images, but those of codes.
            self.floats = found.as_strided(*_sizes_and_strides(self.codes, self.order))
        return self.floats

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        padded = None
        if func is torch.ops.aten.constant_pad_nd.default and type(args[0]) is cls:
            padded = args[0]._padded(*args[1:])
        elif func is torch.ops.aten.pad.default and type(args[0]) is cls:  # in inference mode
            given: list[Any] = [*args[1:], *("constant", None)[len(args) - 2 :]]
            padded = args[0]._padded(given[0], given[2]) if given[1] == "constant" else None
        if padded is not None:
            return padded
        if torch.Tag.inplace_view in func.tags and func is not torch.ops.aten.detach_.default:
            raise KernelError("Images that one convolution hands to the next cannot change their shape in place.")
        plain = tree_map_only(CodedImages, lambda images: images._read_by(func), (args, kwargs or {}))
        return func(*plain[0], **plain[1])

    def _read_by(self, reader: object) -> Tensor:
        """What somebody else is given, who is told once that it is rounded."""
        if self.floats is None:
            message = (
                f"{reader} reads what one convolution of an optimized network hands to the next: images rounded to 8 "
                "bits. For others, read them before goldstick.optimize, or by a hook on the module that gives them."
            )
            warnings.warn(RoundedImagesWarning(message), stacklevel=2)
        return self.as_floats()

    def _padded(self, sides: Sequence[int], value: float | None = None) -> CodedImages | None:
        """The same with zeros around the images; ``None`` where something else is asked for."""
        if self.floats is not None or value or len(sides) > 4 or min(sides, default=0) < 0:
            return None
        if not any(sides):
            return CodedImages(self.codes, self.range, self.order)
        around = torch.nn.functional.pad(self.codes, (0, 0, *sides), value=_SHIFT + self.range.zero)
        return CodedImages(around, self.range, self.order)


def _sizes_and_strides(codes: Tensor, order: torch.memory_format) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch, height, width, channels = codes.shape
    plane = height * width
    last = order is torch.channels_last
    strides = (plane * channels, 1, width * channels, channels) if last else (plane * channels, plane, width, 1)
    return (batch, channels, height, width), strides


def _of_floats(name: str) -> Callable[..., Any]:
    return lambda images, *args, **kwargs: getattr(images._read_by(name), name)(*args, **kwargs)


for _name in (
    *("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "share_memory_"),
    *("__deepcopy__", "__reduce_ex__"),
):
    setattr(CodedImages, _name, _of_floats(_name))  # torch finds no memory, and would end the process
