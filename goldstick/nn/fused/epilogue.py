"""What a quantized convolution does to its outputs in the place of modules behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as of_all

from goldstick.core.batch_norm import gain_and_shift
from goldstick.kernels.coded_images import InputRange
from goldstick.kernels.prepared import versions
from goldstick.kernels.prepared_convolution import UNBOUNDED, Operands

_MARK = "_epilogue"
Place = tuple[dict[str, Any], str, Any]
"""A module: those beside it, its name, and itself."""


class Epilogue:
    """y = clamp((x ∗ w + c) · g + s), where g and s are those of a batch norm.

    g is multiplied into the scales of the weight, so that nothing is left to do for it. Outputs are marked, and the
    modules behind the convolution pass on what is marked and was not changed since; all else they compute as ever.
    They also do where one of them, or a module around it or the convolution and not both, was hooked,
    replaced or compiled, the norm is in training, or gradients of it are wanted.

    Where one quantized convolution alone reads what becomes of it, y is handed over as the codes that it reads.

    Args:
        norm: The batch norm, or ``None``.

    Attributes:
        bounds: Between what y is kept.
        behind: The modules that pass on what is finished, and those that see it on the way there.
        reader: The convolution that alone reads it, or ``None``.
        on_the_way: The modules that see it on the way there.
    """

    def __init__(self, norm: nn.Module | None = None) -> None:
        self.norm, self.bounds = norm, UNBOUNDED
        self.behind: list[Place] = []
        self.reader: Place | None = None
        self.on_the_way: list[Place] = []
        self._places: tuple[object, ...] = ()
        self._folded: tuple[Tensor, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": (), "_folded": None}  # a copy folds itself

    def operands(self, weight: Operands) -> Operands | None:
        """The operands of the convolution with the norm in them; ``None`` where the modules behind it do their work."""
        if not self._as_found():
            return None
        if self.norm is None:
            return weight
        packed, scale, zero, bias, input_scale, input_zero = weight
        norm: Any = self.norm
        if norm.training:
            return None
        own, more = norm._buffers, norm._parameters  # the module's own look-up takes longer
        read = [scale, bias, own["running_mean"], own["running_var"], more["weight"], more["bias"]]
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in read):
            return None
        counts = versions(
            [*read, own.get("num_batches_tracked")]
        )  # a step of training counts as no change of the others
        places = (*((None if one is None else (one.data_ptr(), one.dtype)) for one in read), *counts)
        if places != self._places or self._folded is None:
            with torch.no_grad():
                gain, shift = gain_and_shift(norm)
                shift = shift if bias is None else shift + bias.double() * gain
                self._folded = (scale.double() * gain.unsqueeze(1)).to(scale.dtype), shift.to(scale.dtype)
            self._places = places if None not in counts else ()
        return packed, self._folded[0], zero, self._folded[1], input_scale, input_zero

    def _as_found(self) -> bool:
        """Whether nothing looks at what lies between the modules, and each is in its place."""
        return not (of_all._global_forward_hooks or of_all._global_forward_pre_hooks) and all(
            map(_in_place, self.behind)
        )

    def handed_by(self) -> InputRange | None:
        """By what the reader rounds y, where y can be handed over as codes."""
        reader = self.reader
        if reader is None or "forward" in vars(reader[2]) or not all(map(_in_place, (reader, *self.on_the_way))):
            return None
        found: InputRange | None = reader[2].input_range()
        return found

    def mark(self, y: Tensor) -> None:
        """Note that an output was made so."""
        setattr(y, _MARK, (self, *versions([y])))

    def made(self, y: Tensor) -> bool:
        """Whether an output was made so, and has not been changed since: in inference mode torch does not tell that."""
        found = getattr(y, _MARK, None)
        return found is not None and found[0] is self and [found[1]] == versions([y])


def _in_place(place: Place) -> bool:
    """Whether a module is still there, nothing looks on, and it is not compiled by itself."""
    siblings, name, module = place
    there = siblings.get(name) is module is not None and module._compiled_call_impl is None
    return there and not module._forward_hooks and not module._forward_pre_hooks


class DoneBefore:
    """The forward of a module whose work an epilogue may have done.

    Args:
        module: The norm or the activation.
        epilogue: That of the convolution before it.
    """

    def __init__(self, module: nn.Module, epilogue: Epilogue) -> None:
        self.module, self.epilogue = module, epilogue

    def __call__(self, input: Tensor) -> Tensor:
        """The very tensor, where it is finished; else what the module makes of it."""
        if not is_dynamo_compiling() and self.epilogue.made(input):
            return input
        found: Tensor = type(self.module).forward(self.module, input)
        return found
