"""Packed parameters of modules that hold several, and whose own forward reads them: attention, recurrent layers."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.nn.experts import QuantizedExperts
from goldstick.nn.float_layer import float_layer_of
from goldstick.nn.own_names import refuse_taken
from goldstick.nn.packed import PackedWeight

_PREFIX = "packed_"
_HOSTING: dict[tuple[type, frozenset[str]], type[nn.Module]] = {}


class PackedParameter(PackedWeight):
    """A packed weight in the place of a parameter of the module that it is a child of.

    Its name there is that of the parameter behind ``packed_``: the attribute of that name gives numbers.
    """


def hold_parameter(
    host: nn.Module, name: str, tensor: QuantizedTensor, scheme: Scheme, layout: Layout, *, indexed: bool
) -> None:
    """Put a packed weight in the place of one parameter of a module, which stays of its class.

    Where the forward takes one expert after another, an index into the attribute dequantizes one. Any other is
    dequantized when the forward reads it.

    Args:
        host: The module.
        name: Its parameter.
        tensor: The codes [..., out, in].
        scheme: What it becomes.
        layout: How the parameter stores its matrix.
        indexed: Whether the module's forward takes one expert of the parameter at a time.

    Raises:
        StructureError: The module has something of its own where the packed weight would be.
    """
    refuse_taken(parameter_name_in_the_way(host, name, indexed=indexed), host)
    parameter = host._parameters.pop(name)
    assert parameter is not None
    packed = (QuantizedExperts if indexed else PackedParameter)(tensor, scheme)
    packed.stored_as, packed.stored_shape = layout, parameter.shape
    packed.train(host.training)
    host.register_module(name if indexed else f"{_PREFIX}{name}", packed)
    if not indexed:
        kind, names = getattr(host, "_hosts", (type(host), frozenset()))
        host.__class__ = hosting(kind, names | {name})
        host.__dict__.pop("_flat_weights", None)  # a list that would keep the float weights of an LSTM alive


def parameter_name_in_the_way(host: nn.Module, name: str, *, indexed: bool) -> str | None:
    """What keeps :func:`hold_parameter` from it: a name that the module has another use for."""
    return None if indexed or not hasattr(host, f"{_PREFIX}{name}") else f"{_PREFIX}{name}"


def held_parameter(host: nn.Module, name: str) -> PackedWeight:
    """The packed weight in the place of a parameter.

    Raises:
        StructureError: There is none: somebody has put another layer there.
    """
    packed = host._modules.get(f"{_PREFIX}{name}", host._modules.get(name))
    if not isinstance(packed, PackedWeight):
        raise StructureError(
            f"A {type(host).__name__} stands where goldstick put a quantized layer: it was replaced since. Put the "
            "quantized one back, or compress the network again."
        )
    return packed


def parameter_of(path: str) -> str:
    """Name of the parameter that a module of experts or a :class:`PackedParameter` stands for, by its path."""
    owner, dot, name = path.rpartition(".")
    return f"{owner}{dot}{name.removeprefix(_PREFIX)}"


def hosting(kind: type[nn.Module], names: frozenset[str]) -> type[nn.Module]:
    """The class of modules of a class that read some of their parameters from packed weights."""
    if (kind, names) not in _HOSTING:
        _HOSTING[kind, names] = _derive(kind, names)
    return _HOSTING[kind, names]


def _derive(kind: type[nn.Module], names: frozenset[str]) -> type[nn.Module]:
    body: dict[str, Any] = {name: property(functools.partial(_numbers, name)) for name in names}
    if issubclass(kind, nn.RNNBase):
        body["_flat_weights"] = property(_flat_weights, lambda module, value: None)
    body |= {"__new__": float_layer_of(kind), "_hosts": (kind, names), "__reduce_ex__": _reduced}
    body |= {"__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(f"Quantized{kind.__name__}", (kind,), body)


def _numbers(name: str, module: nn.Module) -> Tensor:
    return held_parameter(module, name).stored_numbers()


def _flat_weights(module: Any) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


def _reduced(module: Any, _: int) -> tuple[Any, ...]:
    return _blank, module._hosts, module.__getstate__()


def _blank(kind: type[nn.Module], names: frozenset[str]) -> nn.Module:
    cls = hosting(kind, names)
    return cls.__new__(cls)
