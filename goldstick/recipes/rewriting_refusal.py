"""Where a recipe that rewrites networks is refused, while planning."""

from __future__ import annotations

from collections.abc import Sequence

from goldstick.algorithms.stage import Rewriter, Stage, of_kind
from goldstick.errors import RecipeError


def refuse_rewriting(stages: Sequence[Stage], what: str) -> None:
    """Refuse a recipe that rewrites a network of which more is known than its modules.

    Raises:
        RecipeError: It does.
    """
    for stage in of_kind(stages, Rewriter):
        raise RecipeError(
            f"{stage.name} rewrites networks in memory, and {what} is built as its class says. Leave the stage out; "
            "for any other nn.Module, goldstick.apply(model, recipe, data=...) does it."
        )
