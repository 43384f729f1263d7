"""A quantized layer is a layer of the class that it replaces: its attributes, its forward, its hooks.

The class of a quantized layer is derived from two: the class of the float layer, and what runs on packed rows. Python's
own order of classes then decides what a call does. A forward that somebody wrote is kept, and reads ``self.weight``, a
:class:`~goldstick.nn.lazy_weight.LazyWeight`; one that was inherited from ``nn.Linear`` (or calls it by ``super()``)
finds that of :class:`~goldstick.nn.linear.QuantizedLinear` in its place.
"""

from __future__ import annotations

import types
from typing import Any

from torch import nn

from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stand_in import foreign_forward
from goldstick.errors import StructureError
from goldstick.nn.packed import PackedWeight

_DERIVED: dict[tuple[type, type], type[PackedWeight]] = {}


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
        StructureError: Something has put a function in the place of this one layer's forward.
    """
    known = any(_stands_for(kind, one) for one in type(old).__mro__)
    cls = derived(kind if known else PackedWeight, type(old))
    new: PackedWeight = cls.__new__(cls)
    new.__dict__.update(old.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        new.__dict__[name] = dict(old.__dict__[name])
    weight = new._parameters.pop("weight")
    assert weight is not None
    bias = new._parameters.get("bias")
    if bias is not None:
        new._parameters["bias"] = nn.Parameter(bias.detach(), requires_grad=False)
    new.__dict__.pop("forward", None)
    if (forward := foreign_forward(old)) is not None:
        new.__dict__["forward"] = _rebound(forward, old, new)
    new.hold(tensor, scheme, layout, weight.shape, **inputs)
    return new


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
    return new


def derived(kind: type[PackedWeight], base: type[nn.Module]) -> type[PackedWeight]:
    """The class of quantized layers that stand for ``base``: a subclass of both, one for each pair."""
    if (kind, base) not in _DERIVED:
        _DERIVED[kind, base] = _derive(kind, base)
    return _DERIVED[kind, base]


def _derive(kind: type[PackedWeight], base: type[nn.Module]) -> type[PackedWeight]:
    if issubclass(base, PackedWeight):
        raise StructureError(f"A {base.__name__} is quantized already.")
    known = next((one for one in base.__mro__ if _stands_for(kind, one)), base)
    bases = (kind, base) if known is base else (base, derived(kind, known))
    name = base.__name__ if base.__name__.startswith("Quantized") else f"Quantized{base.__name__}"
    body = {"__reduce_ex__": _reduced, "_made_of": (kind, base), "__doc__": kind.__doc__, "__module__": __name__}
    return type(name, bases, body)


def _stands_for(kind: type[PackedWeight], base: type) -> bool:
    return base in kind.stands_for or base.__name__ in kind.stands_for


def _reduced(module: PackedWeight, _: int) -> tuple[Any, ...]:
    return _blank, module._made_of, module.__getstate__()  # type: ignore[no-untyped-call]


def _blank(kind: type[PackedWeight], base: type[nn.Module]) -> PackedWeight:
    cls = derived(kind, base)
    return cls.__new__(cls)


def _rebound(forward: Any, old: nn.Module, new: nn.Module) -> Any:
    """The forward that somebody gave this one layer, as the new layer's."""
    if isinstance(forward, types.MethodType) and forward.__self__ is old:
        return types.MethodType(forward.__func__, new)
    raise StructureError(
        f"A function stands in the place of the forward of this {type(old).__name__} and would go on computing with "
        "its float weight. Take it off first (accelerate: remove_hook_from_module(model, recurse=True)), or exclude "
        "the layer."
    )
