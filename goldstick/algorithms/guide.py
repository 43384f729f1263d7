"""Guide: of which error a stage looks for the least, where that is not the error of each layer's own output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from goldstick.errors import RecipeError

#: The error of a layer's output, of its block's output, or of the loss at the end.
Objective = Literal["layer", "output", "loss"]


@dataclass(frozen=True, kw_only=True)
class Guide:
    """How the inputs of layers are weighted (GuidedQuant, arXiv 2505.07004).

    Attributes:
        objective: What an error of an output is weighed by: the ``output`` of the block, or the ``loss`` at the end.
        parts: Into how many parts the outputs of a layer are taken apart, each with a Hessian of its own.
        mix: How much of the plain Hessian is mixed in, 0 to 1, against weights of few tokens.
        two_sided: Whether outputs are looked at together, too (YAQA, arXiv 2505.22988).
        unknown: What the report says where a layer has its own error in the place of these.
    """

    unknown: ClassVar[str] = "layer: it is not known what an error of its output costs further on"

    objective: Objective
    parts: int = 1
    mix: float = 0.2
    two_sided: bool = False

    def __post_init__(self) -> None:
        if self.objective not in ("output", "loss"):
            raise RecipeError(f"objective is layer, output or loss, not {self.objective!r}.")
        if self.parts < 1 or not 0 <= self.mix <= 1:
            raise RecipeError(
                f"output_groups is at least 1 and mix a share from 0 to 1, not {self.parts} and {self.mix}."
            )


def guide_for(objective: Objective, parts: int, mix: float, two_sided: bool = False) -> Guide | None:
    """The guide of options; ``None`` for the error of each layer's own output.

    Raises:
        RecipeError: An option is out of its range.
    """
    guide = Guide(objective="output" if objective == "layer" else objective, parts=parts, mix=mix)
    if two_sided:
        if objective != "loss":
            raise RecipeError(
                "two_sided looks at gradients of the loss at a layer's outputs: say objective: loss, too."
            )
        guide = replace(guide, parts=1, two_sided=True)
    return None if objective == "layer" else guide
