"""Rewrite: what is done to a network in memory before anything is rounded, and leaves its outputs as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from goldstick import surgery
from goldstick.algorithms.stage import Rewriter, Stage, of_kind
from goldstick.core.edits import Edit, FoldNorm
from goldstick.core.references import copy_of
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.order import misplaced
from goldstick.structure.network import Network
from goldstick.structure.same_outputs import prove_same_outputs


def rewrite(
    model: nn.Module, stages: Sequence[Stage], inputs: Mapping[str, Any] | None, *, inplace: bool
) -> tuple[nn.Module, list[FoldNorm]]:
    """The network rewritten, proven in float64, and the norms that were folded; itself where no stage rewrites.

    Args:
        model: The network.
        stages: The recipe's stages.
        inputs: Some keyword arguments of its forward; ``None`` where they are not known.
        inplace: Whether to change ``model`` itself.

    Raises:
        RecipeError: A stage is not where it belongs, or no inputs are known.
        StructureError: There is nothing to do for a stage, or the outputs would change.
    """
    folds: list[FoldNorm] = []
    for stage in of_kind(stages, Rewriter):
        if problems := misplaced(stages):
            raise RecipeError(problems[0])
        if inputs is None:
            raise RecipeError(f"{stage.name} runs the network to see what follows what: give data=, a batch is enough.")
        edits = stage.find(model, inputs)
        if not edits:
            nothing = stage.nothing.format(type(model).__name__)
            raise StructureError(f"{nothing}. Leave the stage {stage.name} out.")
        _prove(model, edits, inputs, stage.name)
        model, inplace = model if inplace else copy_of(model), True
        surgery.apply(Network(model), edits)
        folds += [edit for edit in edits if isinstance(edit, FoldNorm)]
    return model, folds


def _prove(model: nn.Module, edits: Sequence[Edit], inputs: Mapping[str, Any], name: str) -> None:
    prove_same_outputs(model, inputs, lambda twin: surgery.apply(Network(twin), edits), f"{name} done")
