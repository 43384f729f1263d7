"""Places for the tensors of quantized weights, in a model whose checkpoint is being read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.formats.input_scale import part_name


class StoredWeight(nn.Module):
    """A place for the tensors of one quantized weight while they are read; replaced before the model is used.

    Where the layer holds more than a weight and a bias, it is mixed into its class, so that initialisers give the rest
    its values.
    """

    original: tuple[nn.Module]

    @classmethod
    def in_place_of(cls, original: nn.Module, parts: Mapping[str, Tensor]) -> StoredWeight:
        """A place for these tensors that holds all that a layer does but its weight."""
        more = {*original._parameters, *original._buffers, *original._modules} - {"weight", "bias"}
        kind: Any = type(f"Stored{type(original).__name__}", (cls, type(original)), {}) if more else cls
        place: StoredWeight = kind.__new__(kind)
        place.__dict__.update(original.__dict__)
        for name in ("_parameters", "_buffers", "_modules"):
            place.__dict__[name] = dict(original.__dict__[name])
        del place._parameters["weight"]
        for suffix, part in parts.items():
            place.register_buffer(part_name("weight", suffix).removeprefix("."), part)
        place.original = (original,)
        return place

    def restored(self) -> nn.Module:
        """The layer, with what was read and initialised beside its weight."""
        (original,) = self.original
        for name in ("_parameters", "_buffers", "_modules"):
            held = original.__dict__[name]
            held.update({key: value for key, value in self.__dict__[name].items() if key in held})
        return original

    def __getattr__(self, name: str) -> Any:
        # Initialisers of some models reach for the float weight; there is none to initialise.
        if name == "weight" and name not in self._buffers:
            return nothing(self.original[0]._parameters["weight"])
        return super().__getattr__(name)


def nothing(parameter: Tensor | None) -> Tensor:
    """What stands for a float weight that is not there: its shape; marked as transformers marks what has its values."""
    weight: Any = torch.empty((0,) if parameter is None else parameter.shape, device="meta")
    weight._is_hf_initialized = True
    return weight  # type: ignore[no-any-return]
