"""The proof that edits of a whole network leave its outputs as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from goldstick.core.references import deep_copy
from goldstick.errors import StructureError
from goldstick.structure.probe.double import double_precision
from goldstick.structure.trace import evaluating, keeping_buffers, map_tensors, tensors_in

#: Outputs before and after may differ by this much, relative to their norm, in float64.
EXACT = 1e-8


def prove_same_outputs(
    model: nn.Module, inputs: Mapping[str, Any], apply: Callable[[nn.Module], None], what: str
) -> float:
    """‖y′ − y‖ / ‖y‖ of a network with and without some edits, in float64, on its own weights.

    Args:
        model: The network; left as it is.
        inputs: Keyword arguments of its forward.
        apply: Edits a network in place.
        what: What has been done to it then, for the error.

    Raises:
        StructureError: The outputs differ by more than ``EXACT``.
    """
    given = map_tensors(dict(inputs), lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    twin = deep_copy(model).double()
    with evaluating(twin), double_precision():
        with keeping_buffers(twin):  # the second forward starts from where the first did
            before = _floats(twin(**given))
        apply(twin)
        after = _floats(twin(**given))
    distance = sum(float((new - old).square().sum()) for old, new in zip(before, after, strict=True))
    norm = sum(float(old.square().sum()) for old in before)
    error = (distance / norm) ** 0.5 if norm else float(distance)
    if not error <= EXACT:
        raise StructureError(
            f"With {what}, the outputs of {type(model).__name__} differ by {error:.1e} in float64 ({EXACT:.0e} is "
            "allowed): something in it computes otherwise than was seen. Leave the stage out."
        )
    return error


def _floats(output: Any) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors_in(output) if tensor.is_floating_point()]
