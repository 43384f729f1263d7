"""LazyWeight: what a forward gets that reads a packed weight; numbers only where the forward asks for numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from goldstick.core.inference_mode import without_inference_mode
from goldstick.errors import StructureError

if TYPE_CHECKING:
    from goldstick.nn.embedding import TiedQuantizedLinear
    from goldstick.nn.packed import PackedWeight

#: What is known of a weight without its numbers.
_FACTS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_meta", "is_leaf")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex, Tensor.__len__}
_TRANSPOSED = {*(getattr(Tensor, name).__get__ for name in ("T", "mT")), Tensor.t, torch.t}
#: The same tensor for whoever only reads; whoever writes to it is to be refused as one who writes to the weight.
_ITSELF = {Tensor.data.__get__, Tensor.detach, torch.detach}  # type: ignore[attr-defined]
_REPLACED = Tensor.data.__set__  # type: ignore[attr-defined]
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}


class LazyWeight(Tensor):
    """A packed weight as a tensor of the shape, dtype and device that its layer's parameter had.

    Products with it, ``F.linear(x, W, b)`` and ``x @ W.T``, are those of its packed rows, with the activation scheme of
    the layer; any other operation is given the dequantized numbers. So a forward that somebody else wrote computes
    with this weight what it computed with the float one. Nothing can be written to it: each who asks is given new
    numbers, and what was written would be lost.

    Args:
        owner: The packed weight.
        transposed: Whether it stands for Wᵀ.

    Raises:
        StructureError: An operation writes to it.
    """

    owner: PackedWeight | TiedQuantizedLinear
    transposed: bool

    @staticmethod
    def __new__(cls, owner: PackedWeight | TiedQuantizedLinear, transposed: bool = False) -> LazyWeight:
        """See the class."""
        shape = owner.stored_shape[::-1] if transposed else owner.stored_shape
        scale = owner.weight_scale
        found: LazyWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=scale.dtype, device=scale.device)
        found.owner, found.transposed = owner, transposed
        return found

    def numbers(self) -> Tensor:
        """Its dequantized numbers, which know that they were written to."""
        gradients = torch.is_grad_enabled()
        with without_inference_mode(), torch.set_grad_enabled(gradients):
            found = self.owner.stored_numbers()
        return found.t() if self.transposed else found

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """The numbers, as any tensor shows them."""
        return repr(self.numbers())

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Facts and products without the numbers, everything else with them."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _FACTS:
                return func(*args, **kwargs)
            if func in _TRANSPOSED and len(args[0].shape) == 2:
                return LazyWeight(args[0].owner, not args[0].transposed)
            if func in _ITSELF:
                return LazyWeight(args[0].owner, args[0].transposed)
            if func == _REPLACED and isinstance(args[0], LazyWeight):
                refuse_numbers(args[0].owner)
            product = _product(func, args, kwargs)
            return product if product is not None else _on_numbers(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The numbers, for operators that are called from C++."""
        return _on_numbers(func, args, kwargs or {})


def refuse_numbers(owner: object) -> NoReturn:
    """Say that no numbers can take the place of a packed weight.

    Raises:
        StructureError: Always.
    """
    raise StructureError(
        f"The weight of this {type(owner).__name__} is made of codes, and cannot be replaced by numbers: change the "
        "float model (merge adapters into that) and quantize it again."
    )


def _product(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """x·Ŵᵀ + b where that is what is asked for and the owner can give it; else ``None``."""
    if func is F.linear:
        named = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        x, weight, bias = named["input"], named["weight"], named.get("bias")
    elif func in _MATMUL and len(args) == 2 and not kwargs:
        x, weight, bias = *args, None
    else:
        return None
    # F.linear multiplies with Wᵀ of what it is given, a matrix product with what it is given.
    rows_first = isinstance(weight, LazyWeight) and weight.transposed is not (func is F.linear)
    if not rows_first or isinstance(x, LazyWeight) or isinstance(bias, LazyWeight) or x.ndim < 2:
        return None
    found: Tensor | None = weight.owner.product(x, bias)
    return found


def _on_numbers(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a function gives for the numbers, which it must not write to."""
    lazy = [value for value in tree_leaves((args, kwargs)) if isinstance(value, LazyWeight)]
    numbers = {id(value): value.numbers() for value in lazy}
    before = {key: value._version for key, value in numbers.items()}
    args, kwargs = tree_map(lambda value: numbers.get(id(value), value), (tuple(args), dict(kwargs)))
    found = func(*args, **kwargs)
    for value in lazy:
        if numbers[id(value)]._version != before[id(value)]:
            refuse_numbers(value.owner)
    return found
