"""Names under which a quantized layer keeps what is goldstick's, and layers that have something else there."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import nn

from goldstick.errors import StructureError

_TORCHS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.TransformerEncoder)
_OWN: dict[type[nn.Module], frozenset[str]] = {}


def own_names(kind: type[nn.Module]) -> frozenset[str]:
    """What the classes of goldstick that a class is made of define or declare, and no layer of torch has."""
    if kind not in _OWN:
        own = [cls for cls in kind.__mro__ if cls.__module__.partition(".")[0] == __name__.partition(".")[0]]
        torchs = [base for cls in _TORCHS for base in cls.__mro__]
        _OWN[kind] = frozenset().union(*map(_names_of, own)) - frozenset().union(*map(_names_of, torchs))
    return _OWN[kind]


def taken_name(kind: type[nn.Module], layer: nn.Module) -> str | None:
    """The first of the :func:`own_names` of a class under which a float layer has something, whatever it is."""
    return next((name for name in sorted(own_names(kind)) if _has(layer, name)), None)


def refuse_taken(name: str | None, layer: nn.Module, sites: Sequence[str] = ()) -> None:
    """Refuse a float layer that has something under a name that it would keep other things under as a quantized one.

    Args:
        name: The name; ``None`` where there is none.
        layer: The layer.
        sites: Names of this and all other such layers.

    Raises:
        StructureError: There is such a name.
    """
    if name is None:
        return
    what = f"{'an' if name[0] in 'aeiou' else 'a'} {name} of its own"
    more = f" and {len(sites) - 4} more" if len(sites) > 4 else ""
    raise StructureError(
        f"A quantized layer keeps what it works with where this {type(layer).__name__} has {what}: "
        "rename that, or exclude the layer (targets: {exclude: [...]})."
        + (f" So it is with {', '.join(sites[:4])}{more}." if sites else "")
    )


def _has(layer: nn.Module, name: str) -> bool:
    if any(name in store for store in (vars(layer), layer._parameters, layer._buffers, layer._modules)):
        return True
    cls = type(layer)
    if any(name in vars(one) for one in cls.__mro__):
        return True
    looks_elsewhere = cls.__getattr__ is not nn.Module.__getattr__
    return looks_elsewhere and hasattr(layer, name)


def _names_of(cls: type) -> frozenset[str]:
    return frozenset({*vars(cls), *inspect.get_annotations(cls)})
