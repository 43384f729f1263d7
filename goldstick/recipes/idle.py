"""Idle: a recipe whose stages that round have not a single layer to act on."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from goldstick.algorithms.base import rounds
from goldstick.core.counts import counted
from goldstick.errors import RecipeError
from goldstick.recipes.resolve import Resolution
from goldstick.structure.network import Network


def refuse_idle(network: Network, resolution: Resolution) -> None:
    """Refuse stages that round where no layer is left to them; a recipe without such stages may do other things.

    Raises:
        RecipeError: There are such stages and no layer; the message says why most layers are left alone.
    """
    idle = [f"stages[{index}].{stage.name}" for index, stage in enumerate(resolution.stages) if rounds(stage)]
    if not idle or resolution.assignments:
        return
    stages = ", ".join(idle)
    if not network.sites:
        raise RecipeError(
            f"{stages}: the network has no layer that could be rounded (linear, convolution, embedding, experts), so "
            f"nothing would be done. {_remedy(network.model)}"
        )
    reasons = Counter(resolution.ignored[site.parameter_name] for site in network.sites if site.role == "inner")
    why = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    raise RecipeError(
        f"{stages}: of {counted(len(network.sites), 'layer')} that could be rounded none is{why}, so nothing would be "
        "done. Widen 'targets', choose a group size that divides, or leave the stage out."
    )


def _remedy(model: nn.Module) -> str:
    if isinstance(model, torch.jit.ScriptModule):
        return "It is a scripted module, whose layers cannot be replaced: give the module that was scripted."
    if any("weight_packed" in module._buffers for module in model.modules()):
        return "Its layers are quantized already: give the float network."
    return "Give a network that has one."
