"""The proof of a rotation whose model is then read block by block."""

from __future__ import annotations

from goldstick.calibration.memory_budget import used_memory
from goldstick.core.freed_memory import return_freed_memory
from goldstick.hf.example_inputs import inputs_for
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import Plan
from goldstick.structure.network import Network
from goldstick.structure.rotation.proof import prove_rotation


def prove_where_it_fits(plan: Plan, max_memory: int) -> float | None:
    """The error of a plan's rotation on the model's own weights, in float64; ``None`` where it was not tried.

    The proof holds the whole model, and a float64 copy of it. So it is made before the first block, and only where both
    are small: no more than ``LARGEST_PROVEN`` parameters, and no more memory than the run may use.

    Raises:
        StructureError: The rotated model would give other outputs.
    """
    inputs = inputs_for(plan.network.model)
    needed = plan.proof_memory
    if plan.rotation is None or inputs is None or not needed or used_memory() + needed > max_memory:
        return None
    network = Network(load_float(plan.source.directory))  # the inputs are those of the plan's model
    error = prove_rotation(network, plan.rotation.plan, inputs, seed=plan.rotation.stage.seed)
    del network
    return_freed_memory()
    return error
