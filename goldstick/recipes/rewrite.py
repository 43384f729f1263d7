"""Rewrite: what is done to a network in memory before anything is rounded, and leaves its outputs as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms.stage import Rewriter, Stage, of_kind
from goldstick.calibration.scale_fold_targets import small
from goldstick.core.edits import Edit, FoldNorm
from goldstick.core.references import copy_of
from goldstick.errors import DataError, RecipeError, StructureError
from goldstick.recipes.order import misplaced
from goldstick.structure.network import Network
from goldstick.structure.same_outputs import prove_same_outputs
from goldstick.structure.trace import evaluating, keeping_buffers
from goldstick.structure.wrong_inputs import wrong_inputs


def rewrite(
    model: nn.Module, stages: Sequence[Stage], inputs: Mapping[str, Any] | None, *, inplace: bool
) -> tuple[nn.Module, list[FoldNorm]]:
    """The network rewritten, proven in float64, and the norms that were folded; itself where no stage rewrites.

    Args:
        model: The network.
        stages: The recipe's stages.
        inputs: Some keyword arguments of its forward, of which the first rows are used where it runs on them alone;
            ``None`` where they are not known.
        inplace: Whether to change ``model`` itself.

    Raises:
        RecipeError: A stage is not where it belongs, or no inputs are known.
        StructureError: There is nothing to do for a stage, or the outputs would change.
        DataError: The network does not run on the inputs.
    """
    folds: list[FoldNorm] = []
    tried: Mapping[str, Any] = {}
    for stage in of_kind(stages, Rewriter):
        if problems := misplaced(stages):
            raise RecipeError(problems[0])
        if inputs is None:
            raise RecipeError(f"{stage.name} runs the network to see what follows what: give data=, a batch is enough.")
        model, inplace = model if inplace else copy_of(model), True  # forwards may change what it holds
        with keeping_buffers(model):
            tried = tried or _that_run(model, inputs)
            edits = stage.find(model, tried)
            if not edits:
                nothing = stage.nothing.format(type(model).__name__)
                raise StructureError(f"{nothing}. Leave the stage {stage.name} out.")
            _prove(model, edits, tried, stage.name)
        surgery.apply(Network(model), edits)
        folds += [edit for edit in edits if isinstance(edit, FoldNorm)]
    return model, folds


@torch.no_grad()
def _that_run(model: nn.Module, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first rows of the inputs, or all of them where their first dimension holds no rows that are apart."""
    reason = ""
    for tried in (small(inputs), inputs):
        try:
            with wrong_inputs(DataError), evaluating(model), torch.inference_mode(False):
                model(**tried)
        except DataError as error:
            reason = str(error)
        else:
            return tried
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items() if isinstance(value, Tensor))
    raise DataError(
        f"The first batch of data ({shapes}) does not run through this {type(model).__name__}: {reason}. Give batches "
        "that its forward takes."
    )


def _prove(model: nn.Module, edits: Sequence[Edit], inputs: Mapping[str, Any], name: str) -> None:
    prove_same_outputs(model, inputs, lambda twin: surgery.apply(Network(twin), edits), f"{name} done")
