"""Fold norms: the first thing done to a network whose convolutions take over their batch norms."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from goldstick import surgery
from goldstick.algorithms import FoldBatchNorm, Stage
from goldstick.core.edits import FoldNorm
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.order import misplaced
from goldstick.structure.network import Network
from goldstick.structure.norm_folding import prove_norm_folds


def folding_of(stages: Sequence[Stage]) -> FoldBatchNorm | None:
    """The stage that folds batch norms, if any."""
    return next((stage for stage in stages if isinstance(stage, FoldBatchNorm)), None)


def refuse_folding(stages: Sequence[Stage], what: str) -> None:
    """Refuse a recipe that folds batch norms where they cannot be taken out.

    Raises:
        RecipeError: It does.
    """
    if folding_of(stages) is not None:
        raise RecipeError(
            f"fold_batch_norm takes modules out of a network, and {what} is built as its class says. Leave the stage "
            "out; for any other nn.Module, goldstick.apply(model, recipe, data=...) does it."
        )


def fold_norms(
    model: nn.Module, stages: Sequence[Stage], inputs: Mapping[str, Any] | None, *, inplace: bool
) -> tuple[nn.Module, list[FoldNorm]]:
    """The network with its batch norms folded, proven, and what was folded; the network itself where no stage says so.

    Args:
        model: The network.
        stages: The recipe's stages.
        inputs: Some keyword arguments of its forward; ``None`` where they are not known.
        inplace: Whether to change ``model`` itself.

    Raises:
        RecipeError: The stage is not the first, or no inputs are known.
        StructureError: No batch norm can be folded, or the outputs would change.
    """
    stage = folding_of(stages)
    if stage is None:
        return model, []
    if problems := misplaced(stages):
        raise RecipeError(problems[0])
    if inputs is None:
        raise RecipeError("fold_batch_norm runs the network to see what follows what: give data=, a batch is enough.")
    folds = stage.find(model, inputs)
    if not folds:
        raise StructureError(
            f"No batch norm of this {type(model).__name__} follows a convolution that nothing else reads. Leave the "
            "stage fold_batch_norm out."
        )
    prove_norm_folds(model, folds, inputs, lambda twin: surgery.apply(Network(twin), folds))
    target = model if inplace else copy.deepcopy(model)
    surgery.apply(Network(target), folds)
    return target, folds
