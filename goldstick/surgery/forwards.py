"""Other forwards for modules, which do the same faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from goldstick.errors import StructureError
from goldstick.nn import FusedLinears, QuantizedLinear
from goldstick.nn.fused.decode_block import FusedDecodeBlock
from goldstick.nn.fused.epilogue import DoneBefore, Epilogue, Place
from goldstick.nn.fused.feed_forward import GatedForward, NormForward
from goldstick.nn.fused.fused_linears import obstacle
from goldstick.nn.fused.token_attention import TokenAttention

#: Forwards that do some calls of a module faster.
Forward = NormForward | GatedForward | TokenAttention | FusedDecodeBlock


def fuse_linears(model: nn.Module, paths: Sequence[str]) -> FusedLinears:
    """Let the quantized linear layers at ``paths`` multiply their common input at once; ``separate()`` undoes it.

    Raises:
        StructureError: One is no such layer, or they cannot be stacked; the message says why.
    """
    layers = [model.get_submodule(path) for path in paths]
    parts = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    reason = "not all are quantized linear layers" if len(parts) < len(layers) else obstacle(parts)
    if reason is not None:
        raise StructureError(f"{', '.join(paths)} cannot run as one multiplication: {reason}.")
    return FusedLinears(parts)


def run_through(module: nn.Module, forward: Forward) -> Callable[[], None]:
    """Let a module's calls go through another forward, which was made for it; returns what undoes that.

    The module keeps its class, place, parameters and hooks.
    """
    module.__dict__["forward"] = forward

    def undo() -> None:
        del module.__dict__["forward"]

    return undo


def take_over(
    model: nn.Module, convolution: str, behind: str, bounds: tuple[float, float] | None = None
) -> Callable[[], None]:
    """Let a quantized convolution do the work of a module behind it, as long as the two stay as they are.

    Args:
        model: The network.
        convolution: Path of the convolution.
        behind: Path of a batch norm, or of an activation behind the convolution or the norm that was taken over.
        bounds: Between what the activation keeps its input; ``None`` of a norm.

    Returns:
        What undoes that.
    """
    layer: Any = model.get_submodule(convolution)
    place = _place(model, behind)
    module = place[2]
    before = layer.epilogue
    epilogue = before or Epilogue(None if bounds is not None else module)
    old, kept = epilogue.bounds, epilogue.behind
    layer.epilogue, epilogue.bounds = epilogue, bounds or old
    epilogue.behind = [*kept, place, *_apart(model, convolution, behind)]
    module.__dict__["forward"] = DoneBefore(module, epilogue)

    def undo() -> None:
        layer.epilogue, epilogue.bounds, epilogue.behind = before, old, kept
        del module.__dict__["forward"]

    return undo


def hand_over(model: nn.Module, convolution: str, reader: str) -> Callable[[], None]:
    """Let a quantized convolution write the codes that another one reads, which alone reads what it gives.

    Args:
        model: The network.
        convolution: Path of the one, whose batch norm and activation were taken over.
        reader: Path of the other, with a static input.

    Returns:
        What undoes that.
    """
    layer: Any = model.get_submodule(convolution)
    before = layer.epilogue
    epilogue = layer.epilogue = before or Epilogue()
    epilogue.reader, epilogue.on_the_way = _place(model, reader), _apart(model, convolution, reader)

    def undo() -> None:
        layer.epilogue, epilogue.reader, epilogue.on_the_way = before, None, []

    return undo


def _place(model: nn.Module, path: str) -> Place:
    parent, _, name = path.rpartition(".")
    siblings: dict[str, Any] = model.get_submodule(parent)._modules
    return siblings, name, siblings[name]


def _apart(model: nn.Module, one: str, other: str) -> list[Place]:
    """The modules that contain one of two, and not the other: calls of these see what goes from one to the other."""
    return [_place(model, path) for path in sorted(_containing(one) ^ _containing(other))]


def _containing(path: str) -> set[str]:
    names = path.split(".")
    return {".".join(names[:length]) for length in range(1, len(names))}
