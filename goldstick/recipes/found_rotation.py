"""What the rotation of a recipe turns in a network, found by trying, before a weight is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldstick.algorithms.stage import Rotation, Stage, of_kind
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.order import misplaced
from goldstick.recipes.resolve import Resolution
from goldstick.structure.network import Network
from goldstick.structure.rotation.plan import RotationPlan


@dataclass(frozen=True, kw_only=True)
class FoundRotation:
    """A rotation that the recipe asks for and that the network has been found to allow.

    Attributes:
        stage: The stage.
        plan: What is to be turned.
    """

    stage: Rotation
    plan: RotationPlan

    def to_dict(self, error: float | None = None) -> dict[str, Any]:
        """Plain data for the report; ``error`` is what :func:`rotate` gave."""
        plan = self.plan
        heads = {block.block: [head.output for head in block.heads] for block in plan.blocks if block.heads}
        left = [name.removesuffix(".weight") for block in plan.blocks for name in block.inputs_left]
        return {
            "seed": self.stage.seed,
            "residual_channels": plan.width if plan.residual else 0,
            "blocks": [block.block for block in plan.blocks],
            "heads": heads,
            "inputs": {name.removesuffix(".weight"): size for name, size in plan.inputs.items()},
            "inputs_left": left if plan.inputs else [],
            "untied": list(plan.unties),
            "error_with_a_block_of_each_kind": plan.error,
            "error_of_the_whole_model": error,
        }


def turn_quantized(rotation: FoundRotation | None, resolution: Resolution) -> tuple[FoundRotation | None, Resolution]:
    """A rotation that turns at run time only the inputs of layers that are quantized, and a resolution that says so.

    A layer that stays float needs no turned input; no config of a float layer could tell a reader to turn it.

    Args:
        rotation: What the recipe's rotation turns; ``None`` where it has none.
        resolution: What the recipe means.

    Raises:
        RecipeError: Inputs are to be turned and none of their layers is quantized; or a stage trains.
    """
    if rotation is None or not rotation.plan.inputs:
        return rotation, resolution
    sizes = {name.removesuffix(".weight"): size for name, size in rotation.plan.inputs.items()}
    quantized = {name: size for name, size in sizes.items() if name in resolution.assignments}
    if resolution.trains:
        training = next(stage.name for stage in resolution.stages if stage.trains)
        raise RecipeError(
            f"rotate: 'online: true' turns the inputs of layers at run time, which {training} does not train through; "
            "leave one of them out."
        )
    if not quantized:
        raise RecipeError(
            f"rotate: 'online: true' would turn the inputs of {next(iter(sizes))} and its like, and the recipe "
            "quantizes none of them; add a stage that does, such as rtn, or leave 'online' out."
        )
    assignments = {
        name: dataclasses.replace(one, rotated=quantized[name], multiplied=False) if name in quantized else one
        for name, one in resolution.assignments.items()
    }
    plan = rotation.plan.turning_only([f"{name}.weight" for name in quantized])
    return dataclasses.replace(rotation, plan=plan), dataclasses.replace(resolution, assignments=assignments)


def find_rotation(
    stages: Sequence[Stage], network: Network, make_inputs: Callable[[], Mapping[str, Any] | None]
) -> FoundRotation | None:
    """What the rotation of a recipe turns in a network, in memory or on the meta device; ``None`` where it has none.

    Args:
        stages: The recipe's stages.
        network: The network.
        make_inputs: Gives some keyword arguments of its forward; ``None`` where they are not known.

    Raises:
        RecipeError: The stage is not the first one, or there are two.
        StructureError: The model cannot be rotated; the message says why.
    """
    stage = next(iter(of_kind(stages, Rotation)), None)
    if stage is None:
        return None
    if problems := misplaced(stages):
        raise RecipeError(problems[0])
    inputs = make_inputs()
    if inputs is None:
        raise StructureError(
            f"{type(network.model).__name__} is no transformers model that goldstick knows how to call to find out how "
            "it can be rotated; give data= (--inputs FILE for a directory), or leave the rotate stage out."
        )
    return FoundRotation(stage=stage, plan=stage.find(network, inputs))
