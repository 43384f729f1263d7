"""A quantized layer is a layer of the class that it replaces: its attributes, its forward, its hooks.

The class of a quantized layer is derived from two: the class of the float layer, and what runs on packed rows. Python's
own order of classes then decides what a call does. A forward that somebody wrote is kept, and reads ``self.weight``, a
:class:`~goldstick.nn.lazy_weight.LazyWeight`; one that was inherited from ``nn.Linear`` (or calls it by ``super()``)
finds that of :class:`~goldstick.nn.linear.QuantizedLinear` in its place. Whoever makes another layer of the class
gets a float one.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stand_in import foreign_forward
from goldstick.errors import StructureError
from goldstick.nn.embedding import QuantizedEmbedding, TiedQuantizedLinear
from goldstick.nn.float_layer import float_layer_of
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.own_names import refuse_taken, taken_name
from goldstick.nn.packed import PackedWeight

_DERIVED: dict[tuple[type, type], type[Any]] = {}


def in_place_of(
    kind: type[PackedWeight],
    old: nn.Module,
    tensor: QuantizedTensor,
    scheme: Scheme,
    layout: Layout = Layout.LINEAR,
    **inputs: Any,
) -> PackedWeight:
    """A module on a packed weight that is ``old`` in all else; ``old`` is left as it is.

    Args:
        kind: What runs on the packed rows.
        old: The layer with the float parameter ``weight``.
        tensor: The codes of its matrix [out, in].
        scheme: What it becomes.
        layout: How its parameter stores that matrix.
        inputs: What ``kind`` is told of its input.

    Raises:
        StructureError: Something has put a function in the place of this one layer's forward, or the layer has
            something of its own under a name that goldstick would use.
    """
    new: PackedWeight = _without_weight(old, _fitting(kind, old))
    weight = old._parameters["weight"]
    assert weight is not None
    new.hold(tensor, scheme, layout, weight.shape, **inputs)
    return new


def name_in_the_way(kind: type[PackedWeight], old: nn.Module) -> str | None:
    """What keeps :func:`in_place_of` from making a quantized layer: a name that ``old`` has another use for."""
    return taken_name(_fitting(kind, old), old)


def turn_into(layer: nn.Module, new: PackedWeight | TiedQuantizedLinear) -> None:
    """Let a layer itself become what was made to stand in its place.

    Whoever refers to the layer then calls the new one: lists, tuples and attributes that it is called from, bound
    methods, functions that have closed over it, the modules that it is registered in.

    Args:
        layer: The layer with the float weight.
        new: What :func:`in_place_of` or a like function made of it; used for nothing else.
    """
    forward = foreign_forward(layer)
    state = dict(new.__dict__)
    if forward is not None:
        state["forward"] = forward  # a method of this very object
    layer.__class__ = type(new)
    layer.__dict__.clear()
    layer.__dict__.update(state)


def sharing(kind: type[PackedWeight], old: nn.Module, source: PackedWeight) -> PackedWeight:
    """A module that is ``old`` in all but its weight, which is the very one of another layer.

    Args:
        kind: What runs on the packed rows.
        old: The layer with the float parameter ``weight``.
        source: The layer whose packed weight it reads.
    """
    new = in_place_of(kind, old, source.quantized_tensor(), source.scheme, source.stored_as)
    for name in source.packed_names:
        store = source._parameters if name in source._parameters else source._buffers
        if name in store:
            getattr(new, "_parameters" if store is source._parameters else "_buffers")[name] = store[name]
    new.prepared = source.prepared
    if isinstance(source, QuantizedLinear) and isinstance(new, QuantizedLinear):
        new.rotated = source.rotated
    return new


def tied_to(old: nn.Module, embedding: QuantizedEmbedding) -> TiedQuantizedLinear:
    """An output head that is ``old`` in all but its weight, which is that of an embedding.

    Args:
        old: The head with the float weight; left as it is.
        embedding: Whose packed rows it multiplies by.
    """
    new: TiedQuantizedLinear = _without_weight(old, TiedQuantizedLinear)
    new.read_from(embedding)
    return new


def _fitting(kind: type[PackedWeight], old: nn.Module) -> type[PackedWeight]:
    """What runs in the place of a layer: a kind whose own forward does what that class does, or only holds numbers."""
    return kind if any(_stands_for(kind, one) for one in type(old).__mro__) else PackedWeight


def _without_weight(old: nn.Module, kind: type[Any]) -> Any:
    """What a layer is beside its weight, in the class derived from its own."""
    new = _blank(kind, type(old))
    refuse_taken(taken_name(kind, old), old)
    new.__dict__.update(old.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        new.__dict__[name] = dict(old.__dict__[name])
    del new._parameters["weight"]
    bias = new._parameters.get("bias")
    if bias is not None:
        new._parameters["bias"] = nn.Parameter(bias.detach(), requires_grad=False)
    new.__dict__.pop("forward", None)
    if (forward := foreign_forward(old)) is not None:
        new.__dict__["forward"] = _rebound(forward, old, new)
    return new


def derived(kind: type[Any], base: type[nn.Module]) -> type[Any]:
    """The class of quantized layers that stand for ``base``: a subclass of both, one for each pair."""
    if (kind, base) not in _DERIVED:
        _DERIVED[kind, base] = _derive(kind, base)
    return _DERIVED[kind, base]


def _derive(kind: type[Any], base: type[nn.Module]) -> type[Any]:
    if issubclass(base, PackedWeight | TiedQuantizedLinear):
        raise StructureError(f"A {base.__name__} is quantized already.")
    known = next((one for one in base.__mro__ if _stands_for(kind, one)), base)
    bases = (kind, base) if known is base else (base, derived(kind, known))
    name = base.__name__ if base.__name__.startswith("Quantized") else f"Quantized{base.__name__}"
    body: dict[str, Any] = {"__new__": float_layer_of(base), "__reduce_ex__": _reduced, "_made_of": (kind, base)}
    body |= {"__doc__": kind.__doc__, "__module__": base.__module__}
    if known is base and known.__name__ in kind.stands_for:  # transformers' Conv1D calls its argument x
        body["forward"] = _forward_on_x(kind)
    return type(name, bases, body)


def _forward_on_x(kind: type[Any]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        found: Tensor = kind.forward(self, x)
        return found

    return forward


def _stands_for(kind: type[Any], base: type) -> bool:
    return base in kind.stands_for or base.__name__ in kind.stands_for


def _reduced(module: Any, _: int) -> tuple[Any, ...]:
    return _blank, module._made_of, module.__getstate__()


def _blank(kind: type[Any], base: type[nn.Module]) -> Any:
    cls: Any = derived(kind, base)
    return cls.__new__(cls)


def refuse_function(layers: Mapping[str, nn.Module]) -> None:
    """Refuse layers of which one has a function in the place of its forward, which would not follow.

    Args:
        layers: Layers by name.

    Raises:
        StructureError: There is such a function.
    """
    held = {name: layer for name, layer in layers.items() if _is_function(foreign_forward(layer), layer)}
    if held:
        name, *more = held
        rest = f" (and of {len(more)} more)" if more else ""
        raise StructureError(
            f"A function stands in the place of the forward of {name}{rest}, a {type(held[name]).__name__}, and would "
            "go on computing with its float weight. Take it off first (accelerate: remove_hook_from_module(model, "
            "recurse=True)), or exclude the layer."
        )


def _is_function(forward: Any, layer: nn.Module) -> bool:
    return forward is not None and not (isinstance(forward, types.MethodType) and forward.__self__ is layer)


def _rebound(forward: Any, old: nn.Module, new: nn.Module) -> Any:
    """The forward that somebody gave this one layer, as the new layer's."""
    refuse_function({"a layer": old})
    return types.MethodType(forward.__func__, new)
