"""What a layer's forward does with its weight: followed, not guessed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from goldstick.core.layout import TRANSPOSED_LINEAR_CLASSES
from goldstick.core.stand_in import foreign_forward

_CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PRODUCTS = {F.linear: "linear", F.conv1d: "convolution", F.conv2d: "convolution", F.conv3d: "convolution"}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
_TRANSPOSES = {*(getattr(Tensor, name).__get__ for name in ("T", "mT")), Tensor.t, torch.t}


class Reading(StrEnum):
    """What becomes of a layer's weight in its forward."""

    INPUT = "input"  # one product of it with what the layer is given
    PRODUCT = "product"  # one product of it with something that the forward makes of that
    STACK = "stack"  # one product of the matrices of all experts at once
    OWN = "own"  # anything else


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of a weight with something.

    Attributes:
        input: What it is multiplied with: [..., in], or for a convolution [batch, channels, *places].
        kernel: Sides of the kernel; empty for a linear layer.
        stride, padding, dilation: Of the convolution, for each side.
        groups: In how many groups it computes.
        of: The very tensor that the forward multiplied.
    """

    input: Tensor
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    of: Tensor | None = None


def reading_of(module: nn.Module) -> tuple[Reading, bool]:
    """What a linear layer or a convolution does with its weight; followed where its class does not say.

    A class with the forward of ``nn.Linear`` or of a convolution gives a product. A forward of its own may standardize
    the weight, read it twice or choose experts by it, so that what arrives at the layer is not what the weight is
    multiplied with. Other modules count as products.

    Args:
        module: The layer, which may lie on the meta device. It is not changed.

    Returns:
        What becomes of the weight, and whether more than a float tensor comes out: a router chooses by it.
    """
    if not inherits_forward(module):
        return _followed(module)
    return Reading.INPUT, False


def inherits_forward(module: nn.Module) -> bool:
    """Whether a layer computes with the forward of torch's own class."""
    cls = type(module)
    if isinstance(module, nn.Linear):
        return cls.forward is nn.Linear.forward and foreign_forward(module) is None
    for kind in _CONVOLUTIONS:
        if isinstance(module, kind):
            inherits = cls.forward is kind.forward and cls._conv_forward is kind._conv_forward  # type: ignore[attr-defined]
            return inherits and foreign_forward(module) is None
    return True


def products_in(run: Callable[[], Any], weight: Tensor) -> tuple[list[Product], Any]:
    """The products with a weight during a run, and what the run gives."""
    with _Following(weight) as following:
        output = run()
    return following.products, output


def _followed(module: nn.Module) -> tuple[Reading, bool]:
    twin = _twin_on_meta(module)
    weight: Any = twin._parameters["weight"]
    forward: Any = foreign_forward(module) or type(module).forward.__get__(twin)
    x = torch.empty(_input_shape(module), device="meta")
    try:
        with torch.device("meta"), torch.inference_mode(False), torch.no_grad():
            products, output = products_in(lambda: forward(x), weight)
    except Exception:  # any code of the layer may fail, in any way
        return Reading.OWN, False
    chooses = not isinstance(output, Tensor) or not output.is_floating_point()
    if len(products) != 1:
        return Reading.OWN, chooses
    return Reading.INPUT if products[0].of is x else Reading.PRODUCT, chooses


def _twin_on_meta(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin.training = False
    for name in ("_parameters", "_buffers"):
        store: Mapping[str, Tensor | None] = module.__dict__[name]
        twin.__dict__[name] = {key: None if value is None else _on_meta(value) for key, value in store.items()}
    children = module._modules.items()  # a layer may hold others, such as those of LoRA
    twin.__dict__["_modules"] = {key: None if child is None else _twin_on_meta(child) for key, child in children}
    return twin


def _on_meta(value: Tensor) -> Tensor:
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    found = torch.empty(value.shape, dtype=dtype, device="meta")
    return nn.Parameter(found, requires_grad=False) if isinstance(value, nn.Parameter) else found


def _input_shape(module: Any) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return 2, 3, module.in_features
    return 2, module.in_channels, *(16 + 2 * kernel for kernel in module.kernel_size)


class _Following(TorchFunctionMode):
    """Notes the products with a weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.products = weight, list[Product]()
        self._transposed: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        found = func(*args, **kwargs)
        if func in _TRANSPOSES and args[0] is self.weight:
            self._transposed.append(found)
        elif func in _MATMUL and len(args) == 2 and any(args[1] is one for one in self._transposed):
            self.products.append(Product(input=args[0].detach(), of=args[0]))
        elif (kind := _PRODUCTS.get(func)) is not None:
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            if named["weight"] is self.weight:
                self.products.append(_linear(named) if kind == "linear" else _convolution(named))
        return found


def _linear(named: Mapping[str, Any]) -> Product:
    return Product(input=named["input"].detach(), of=named["input"])


def _convolution(named: Mapping[str, Any]) -> Product:
    kernel = tuple(named["weight"].shape[2:])
    sides = len(kernel)
    stride, dilation = (_each(named.get(name, 1), sides) for name in ("stride", "dilation"))
    padding = named.get("padding", 0)
    x = named["input"].detach()
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        x = F.pad(x, [amount for side in reversed(total) for amount in (side // 2, side - side // 2)])
        padding = 0
    return Product(
        input=x,
        kernel=kernel,
        stride=stride,
        padding=_each(padding, sides),
        dilation=dilation,
        groups=int(named.get("groups", 1)),
        of=named["input"],
    )


def _each(value: Any, sides: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * sides if len(values) == 1 else values


def stores_input_first(module: nn.Module) -> bool:
    """Whether a linear layer stores its weight as [in, out]."""
    return any(one.__name__ in TRANSPOSED_LINEAR_CLASSES for one in type(module).__mro__)
