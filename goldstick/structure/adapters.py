"""Adapters: what peft puts beside the layers of a model, found by what its layers say of themselves."""

from __future__ import annotations

from torch import nn

#: What a layer of peft (``BaseTunerLayer``) and its wrapper of a module that is trained whole call their own parts.
_NAMES = "adapter_layer_names"


def adapters_in(model: nn.Module) -> dict[nn.Module, str]:
    """Modules that are part of an adapter → path of the layer that has the adapter.

    Which of its parts are adapters (``lora_A``, ``lora_B``, ``modules_to_save``, …) the layer says itself, in
    ``adapter_layer_names``; the float layer that it was made of is none of them.
    """
    found: dict[nn.Module, str] = {}
    for path, layer in model.named_modules():
        names = getattr(layer, _NAMES, ())
        parts = [layer._modules.get(name) for name in names] if isinstance(names, tuple | list) else []
        for part in parts:
            if part is not None:
                found.update({module: path for module in part.modules()})
    return found


def without_adapter(layer: nn.Module | None) -> nn.Module | None:
    """The layer that an adapter was put beside; the layer itself where it has none."""
    while layer is not None and isinstance(getattr(layer, _NAMES, None), tuple | list):
        inner = layer._modules.get("base_layer") or layer._modules.get("original_module")
        if inner is None:
            break
        layer = inner
    return layer
