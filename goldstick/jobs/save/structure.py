"""What the structure probe finds in a model, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from goldstick.hf.example_inputs import inputs_for
from goldstick.jobs.plan.plan import Plan
from goldstick.structure.network import Network
from goldstick.structure.probe.input_groups import probe_network

#: Parameters of a block above which it is not probed: its float32 copy would take more than 256 MiB.
PROBE_LIMIT = 64 * 2**20
#: Runs of a block that the report is worth; transformer blocks take some tens.
_MOST_TRIALS = 128


def structure_of_source(plan: Plan) -> dict[str, Any]:
    """Input groups and fold pairs of the first block of a plan's model, probed on random float32 weights."""
    return structure_of(plan.network.model)


def structure_of(model: nn.Module) -> dict[str, Any]:
    """Input groups and fold pairs of a model's first block, with the errors of the probe."""
    network = Network(model)
    if not network.blocks or not hasattr(model, "config"):
        return {"problem": "the model has no repeated blocks, or says nothing of its inputs"}
    largest = max(sum(p.numel() for p in model.get_submodule(block).parameters()) for block in network.blocks)
    if largest > PROBE_LIMIT:
        return {
            "problem": f"not probed: the float32 copy of a block would take {4 * largest:,} bytes, and no stage of the "
            "recipe folds anything"
        }
    inputs = inputs_for(model)
    if inputs is None:
        return {"problem": "nothing says how to run the model"}
    found: Mapping[str, Any] = probe_network(network, inputs, blocks="first", most_trials=_MOST_TRIALS)
    return {name: block.to_dict() for name, block in found.items()}
