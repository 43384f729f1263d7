"""What a backend is: the run-time weight it is handed, and the two things it computes from it.

The canonical run-time weight of a layer is the packed row stream of ``core/bitpack.py``, int32
[out, ⌈in·bits/32⌉] of unsigned codes u, with ``scale`` [out, groups] in the layer's dtype and ``zero``
[out, groups] in any floating dtype, or ``None`` for 2^(bits−1) everywhere:

    w[o, i] = (u[o, i] − zero[o, g]) · scale[o, g],   g = i // group_size

with both operations rounded to the scale's dtype, in this order. Where u is the code of a float element, w is
value · scale, or value · (scale / global_scale) where scales have a scale in their turn, in float32 and rounded to the
scale's dtype at the end. In superblocks scales are whole numbers, and so are the zeros, which are minimums there; with
d and d' from ``global_scale`` [out, 1 or 2, superblocks] w is value · (scale · d) − zero · d', in float32 and rounded
to the scale's dtype at the end. That is what compressed-tensors and ggml compute, and every backend's weights are
bit-equal to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from goldstick.core.bitpack import packed_width
from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.rounded_inputs import TOKEN_BITS
from goldstick.core.scheme import FLOAT_INPUTS
from goldstick.errors import KernelError

Activation = str | None
"""How a layer's input is quantized: not at all, to int8 or int4 with one scale per token, found on the fly
(``int8-token``, ``int4-token``), to int8 with one scale (and perhaps one zero) for every input, given with the layer
(``int8-tensor``), or to a float element, as ``Grid.input_name`` says."""

_INTEGERS = (*TOKEN_BITS, "int8-tensor")


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """Everything about a quantized linear layer but its numbers.

    Attributes:
        bits: Width of a code, 1 to 8.
        group_size: Neighbouring columns that share a scale; ``in_features`` for one scale a row. The last
            group is shorter where the group size does not divide the row.
        in_features: Columns of the weight matrix.
        out_features: Rows of the weight matrix.
        has_zero: Whether the weight has zeros of its own (is asymmetric).
        activation: How the input is quantized.
        dtype: The dtype of scales, inputs and outputs.
        element: What a code stands for: an integer, or a float element.
        tensor_scaled: Whether scales are divided by a ``global_scale``.
        superblocks: Superblocks of a row; 0 where scales are no whole numbers.
    """

    bits: int
    group_size: int
    in_features: int
    out_features: int
    has_zero: bool
    dtype: torch.dtype
    activation: Activation = None
    element: str = INTEGER
    tensor_scaled: bool = False
    superblocks: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise KernelError(f"a quantized weight has 1 to 8 bits, not {self.bits}")
        if self.in_features < 1 or self.out_features < 0:
            raise KernelError(f"a weight of shape [{self.out_features}, {self.in_features}] is not a linear layer's")
        if not 1 <= self.group_size <= self.in_features:
            raise KernelError(
                f"a group of {self.group_size} columns does not fit into rows of {self.in_features}; "
                f"use the row length itself for one scale a row"
            )
        if not self.dtype.is_floating_point:
            raise KernelError(f"a layer computes in a floating dtype, not {self.dtype}")
        if self.activation not in (None, *_INTEGERS, *FLOAT_INPUTS):
            known = ", ".join(map(repr, (*_INTEGERS, *FLOAT_INPUTS)))
            raise KernelError(f"unknown activation {self.activation!r}; known: None, {known}")
        if self.element != INTEGER and (self.element not in ELEMENTS or ELEMENTS[self.element].bits != self.bits):
            raise KernelError(f"a code of {self.bits} bits is no {self.element!r}")

    @property
    def static_input(self) -> bool:
        """Whether the scale of its input is given with the layer."""
        if self.activation in FLOAT_INPUTS:
            return not FLOAT_INPUTS[self.activation].dynamic
        return self.activation == "int8-tensor"

    @property
    def groups(self) -> int:
        """Scales in a row: ⌈in_features / group_size⌉."""
        return -(-self.in_features // self.group_size)

    @property
    def packed_width(self) -> int:
        """32-bit words in a packed row."""
        return packed_width(self.in_features, self.bits)


class Backend(Protocol):
    """One way to run quantized linear layers. Stateless: everything it needs comes with the call."""

    @property
    def name(self) -> str:
        """What ``GOLDSTICK_BACKEND`` calls it."""
        ...

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """``None`` if such a layer runs here on such a device, otherwise the reason why not."""
        ...

    def linear(
        self,
        x: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        spec: WeightSpec,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """y = f(x) · wᵀ + bias, [..., out] for x [..., in], where f quantizes x if the spec says so.

        ``input_scale`` [1] in the layer's dtype (float32 where it is the scale of scales) and, for an asymmetric input,
        ``input_zero`` int8 [1] come with static inputs, and only with them. ``global_scale`` is float32 [1, 1], or
        [out, 1] for the rows of several matrices; [out, 1 or 2, superblocks] where there are such.
        """
        ...

    def dequantize(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """The weight w [out, in] in the dtype of ``scale``."""
        ...


def refuse_gradients(operator: str) -> None:
    """Refuse to differentiate an operator by scales or zeros, which would learn nothing without a word.

    Raises:
        KernelError: Always.
    """
    raise KernelError(
        f"{operator} has no gradient for scales and zeros: let them not require one, and leave quantized layers out of "
        "what is trained whole (requires_grad_ of a model, peft's modules_to_save)."
    )


def check_weight(
    packed: Tensor, scale: Tensor, zero: Tensor | None, spec: WeightSpec, global_scale: Tensor | None = None
) -> None:
    """Raise a KernelError unless the tensors of a weight are what its spec promises."""
    if packed.dtype != torch.int32:
        raise KernelError(f"packed codes must be int32, not {packed.dtype}")
    if scale.dtype != spec.dtype:
        raise KernelError(f"scales must be {spec.dtype} as the layer is, not {scale.dtype}")
    _expect_shape("packed codes", packed, (spec.out_features, spec.packed_width), spec)
    _expect_shape("scales", scale, (spec.out_features, spec.groups), spec)
    if (zero is not None) != spec.has_zero:
        layer = "asymmetric, but its zeros are missing" if spec.has_zero else "symmetric, but zeros are given"
        raise KernelError(f"the layer is {layer}")
    if zero is not None:
        if not zero.is_floating_point():
            raise KernelError(f"zeros must be floating point, not {zero.dtype}")
        _expect_shape("zeros", zero, (spec.out_features, spec.groups), spec)
    if (global_scale is not None) != (spec.tensor_scaled or spec.superblocks > 0):
        raise KernelError("a scale of scales belongs to layers that have one, and only to them")
    if global_scale is not None and spec.superblocks:
        _expect_shape("scales of scales", global_scale, (spec.out_features, 1 + spec.has_zero, spec.superblocks), spec)
        if spec.groups % spec.superblocks:
            raise KernelError(f"{spec.groups} groups do not divide into {spec.superblocks} superblocks")
    elif global_scale is not None:
        rows = spec.out_features if len(global_scale) > 1 else 1
        _expect_shape("scale of scales", global_scale, (rows, 1), spec)


def check_input(
    x: Tensor,
    bias: Tensor | None,
    spec: WeightSpec,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
) -> None:
    """Raise a KernelError unless an input (its static scale and zero, and the bias) fits the layer."""
    if x.ndim == 0 or x.shape[-1] != spec.in_features:
        raise KernelError(f"an input of shape {list(x.shape)} does not end in the {spec.in_features} input features")
    if x.dtype != spec.dtype:
        raise KernelError(f"the layer computes in {spec.dtype}, but its input is {x.dtype}: cast one of them")
    if bias is not None:
        if bias.dtype != spec.dtype:
            raise KernelError(f"the bias must be {spec.dtype} as the layer is, not {bias.dtype}")
        _expect_shape("bias", bias, (spec.out_features,), spec)
    static = spec.static_input
    if (input_scale is not None) != static or (input_zero is not None and spec.activation != "int8-tensor"):
        raise KernelError(
            f"an input scale (and perhaps zero) belongs to the activation 'int8-tensor' (or to one of floats that is "
            f"static) and only to it; this is {spec.activation!r}"
        )
    if input_scale is not None:
        grid = FLOAT_INPUTS.get(spec.activation or "")
        wanted = torch.float32 if grid is not None and grid.tensor_scaled else spec.dtype
        if input_scale.dtype != wanted:
            raise KernelError(f"the input scale must be {wanted} as the layer is, not {input_scale.dtype}")
        _expect_shape("input scale", input_scale, (1,), spec)
    if input_zero is not None:
        if input_zero.dtype != torch.int8:
            raise KernelError(f"the input zero must be int8, not {input_zero.dtype}")
        _expect_shape("input zero", input_zero, (1,), spec)


def _expect_shape(what: str, tensor: Tensor, shape: tuple[int, ...], spec: WeightSpec) -> None:
    if tuple(tensor.shape) != shape:
        raise KernelError(
            f"{what} of shape {list(tensor.shape)} where a [{spec.out_features}, {spec.in_features}] weight "
            f"of {spec.bits} bits in groups of {spec.group_size} needs {list(shape)}"
        )


def scaling_of(global_scale: Tensor | None) -> tuple[bool, int]:
    """Whether a scale of scales is what scales are divided by, and the superblocks of a row that it is of."""
    if global_scale is None:
        return False, 0
    return (True, 0) if global_scale.ndim == 2 else (False, global_scale.shape[-1])


def superblock_steps(
    scale: Tensor, zero: Tensor | None, global_scale: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor | None]:
    """What values of superblocks are multiplied by, and what is subtracted, each [out, groups]; exact in float32."""
    repeats = scale.shape[-1] // global_scale.shape[-1]
    each = global_scale.to(dtype).repeat_interleave(repeats, dim=-1)
    return scale.to(dtype) * each[..., 0, :], None if zero is None else zero.to(dtype) * each[..., 1, :]
