"""Schemes that a layer cannot have, or that its stage cannot make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goldstick.algorithms.ggml.blocks import is_block
from goldstick.calibration.task import Assignment


def unfit_schemes(assignments: Mapping[str, Assignment]) -> list[str]:
    """What is illegal about the schemes that a recipe gives to layers."""
    found = assignments.values()
    return [problem for one in found if (problem := _impossible(one))] + _none_of_ggml([*found])


def some(names: Sequence[str]) -> str:
    """The first four names, and how many more."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _impossible(assignment: Assignment) -> str | None:
    layout = assignment.site.layout
    if assignment.scheme.activation and not (layout.multiplied or assignment.site.takes_rounded_input):
        return (
            f"{assignment.site.name} is a weight of {'fused experts' if layout.fused else 'an embedding'} and cannot "
            f"take {assignment.scheme.activation.bits}-bit activations; give it a scheme such as w8a16 in 'overrides', "
            "or exclude it."
        )
    return None


def _none_of_ggml(assignments: Sequence[Assignment]) -> list[str]:
    """Layers whose stage has the search of ggml's block types and that would have another grid."""
    strange = [one for one in assignments if one.stage.float16_ranges and not is_block(one.scheme.weight)]
    if not strange:
        return []
    return [
        f"A range search of ggml is for the block types of GGUF files, such as q4_0, q8_0 or q4_k, and "
        f"{strange[0].scheme.label} of {some([one.site.name for one in strange])} is none. Give such layers one of "
        "them, exclude them, or take 'range_search: mse'."
    ]
