"""What layers are solved from, and how large that is between two blocks, from shapes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from goldstick.evaluation.tokenizer import find_context_length
from goldstick.recipes.resolve import Assignment

if TYPE_CHECKING:
    from goldstick.jobs.plan.plan import Plan


def solved(plan: Plan) -> Iterator[Assignment]:
    """What is solved from inputs, once for each site."""
    seen: set[str] = set()
    for tensor in plan.tensors:
        found = tensor.assignment
        if found is not None and found.site.name not in seen and found.stage.needs_inputs(found.scheme):
            seen.add(found.site.name)
            yield found


def itemsize(plan: Plan) -> int:
    """Bytes of a number that goes from block to block."""
    return max(tensor.source.dtype.itemsize for tensor in plan.tensors)


def bytes_of_states(plan: Plan) -> int:
    """Bytes of the hidden states that all calibration tokens give a block.

    A token has as many numbers as most of the solved layers have inputs.
    """
    settings, context = plan.recipe.calibration, find_context_length(plan.network.model, None)
    tokens = settings.model_copy(update={"seq_len": min(settings.seq_len, context)}).tokens
    widths = Counter(found.site.in_features for found in solved(plan)).most_common(1)
    return tokens * itemsize(plan) * widths[0][0] if widths else 0
