"""Blocks too large for the device: which of their layers rest in the processor's memory, and what cannot run so."""

from __future__ import annotations

import torch

from goldstick.calibration.device_memory import room_for_weights
from goldstick.calibration.task import Work
from goldstick.errors import UsageError
from goldstick.hf.resting_layers import RestingLayers, resting_paths
from goldstick.hf.streaming import StreamedModel
from goldstick.structure.network import Network


def let_layers_rest(streamed: StreamedModel, work: Work, device: torch.device) -> None:
    """Let the layers of blocks come to a device one by one, where a block is too large for it.

    Args:
        streamed: A model of which no block was read yet.
        work: What is to be done with it.
        device: Where blocks run.

    Raises:
        UsageError: The work takes the layers of a block all at once.
    """
    parameters = {block: streamed.model.get_submodule(block).parameters() for block in streamed.blocks}
    largest = max(sum(one.nbytes for one in held) for held in parameters.values())
    held = (2 if work.needs_float_inputs else 1) * largest
    whole = work.reconstruction.name if work.reconstruction is not None else ""
    whole = next((f"objective: {guide.objective}" for guide in work.guided), whole)
    room = room_for_weights(held, device, share=1.0 if whole else 0.5)
    if room is None:
        return
    if whole:
        raise UsageError(
            f"A block of this model takes {held / 1e9:.1f} GB for weights, and {device} has room for "
            f"{room / 1e9:.1f} GB. Its layers could come there one by one, but {whole} takes the gradients of all of "
            "them at once: leave that out, free what other programs hold of the device, or use --device cpu."
        )
    streamed.resting = RestingLayers(resting_paths(Network(streamed.model)), device, room)
