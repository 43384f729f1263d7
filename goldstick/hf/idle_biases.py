"""Biases of nothing but zeros beside quantized layers that have none, as earlier versions of AutoGPTQ wrote."""

from __future__ import annotations

from goldstick.formats.input_scale import part_name
from goldstick.hf.layers import StoredLayers
from goldstick.hf.names import CheckpointNames
from goldstick.structure.network import Network


def idle_biases(stored: StoredLayers, names: CheckpointNames, network: Network) -> tuple[str, ...]:
    """The tensors ``P.bias`` of a quantized layer ``P.weight`` that the model has no place for and that add nothing.

    A bias that is not zero everywhere is not among them: without it the model would compute something else.
    """
    parameters = {name for name, _ in network.model.named_parameters(remove_duplicate=False)}
    biases = [part_name(layer.name, ".bias") for layer in stored.layers]
    found = [name for name in biases if name in stored.tensors and names.piece(name).parameter not in parameters]
    return tuple(name for name in found if not bool(stored.tensors[name].read().any()))
