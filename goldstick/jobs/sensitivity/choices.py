"""What sensitivity tries on layers: bits of the recipe's own grid, or schemes by name, and what each of them means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from goldstick.algorithms import RTN, Quantizer
from goldstick.algorithms.column_importance import without_importance
from goldstick.algorithms.ranges import RangeSearch
from goldstick.calibration.task import Assignment
from goldstick.core.mixture import MIXTURES
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import BLOCK_NAMES, Scheme
from goldstick.errors import UsageError
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.report.sensitivity import Choice
from goldstick.structure.network import Network


def in_order(tried: Sequence[Choice]) -> tuple[Choice, ...]:
    """Bits, the fewest first, then schemes as they were given, each once; UsageError for what is no number of bits."""
    bits = sorted({one for one in tried if isinstance(one, int)})
    if not tried or any(not 1 <= one <= 8 for one in bits):
        raise UsageError(f"Widths are 1 to 8 bits, not {', '.join(map(str, tried)) or 'none'}.")
    return (*bits, *dict.fromkeys(one for one in tried if isinstance(one, str)))


def as_it_stands(recipe_stage: Quantizer) -> tuple[Choice, ...]:
    """What is tried where nobody says: 2, 3, 4 and 8 bits of a grid of integers, any other scheme as it is."""
    scheme = recipe_stage.scheme
    if isinstance(scheme, str) and scheme in MIXTURES:
        return (scheme,)
    parsed = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    return (2, 3, 4, 8) if parsed.weight.plain else (parsed.label,)


def assignments_of(
    choices: Sequence[Choice], stages: Sequence[Quantizer], base: Resolution, network: Network
) -> Mapping[Choice, Mapping[str, Assignment]]:
    """Choice → site name → what the site becomes. Some sites may lack a choice: their rows do not fill its blocks.

    Raises:
        UsageError: Bits are tried of a grid that has none to choose.
        RecipeError: A scheme is not known, or does not fit layers.
    """
    found: dict[Choice, Mapping[str, Assignment]] = {}
    for choice in choices:
        if isinstance(choice, int):
            found[choice] = {name: _at(choice, one) for name, one in base.assignments.items()}
        else:
            found[choice] = resolve([_rounding(choice, stage) for stage in stages], network).assignments
    return found


def search_of(assignment: Assignment) -> RangeSearch:
    """The range search of a layer; where it looks at inputs, the same without."""
    return without_importance(getattr(assignment.stage, "range_search", "minmax"))


def stored_bits(rounded: QuantizedTensor, *, halves: bool = False) -> float:
    """Bits of a weight with its share of scales, of zeros in as many bits as the codes, and of scales of scales.

    Args:
        rounded: The weight.
        halves: Whether it has the ranges of ggml's blocks, of which files hold scales and minimums in float16.
    """
    grid = rounded.grid
    scales = rounded.scale.numel()
    if grid.superblock is not None:
        assert grid.scale is not None and rounded.global_scale is not None
        extra = scales * grid.scale.bits * (1 + grid.minimums) + 16 * rounded.global_scale.numel()
        return grid.bits + extra / rounded.codes.numel()
    rows = rounded.codes.shape[-2]
    tall = {"tensor": rows, "block": grid.group_size or 1}.get(grid.granularity, 1)  # rows that share their scales
    scales = scales // rows * -(-rows // tall)
    extra = scales * (8 if grid.scale else 16 if halves else 8 * rounded.scale.element_size())
    extra += 0 if rounded.zero is None else rounded.zero.numel() * (16 if halves else grid.bits)
    extra += 0 if rounded.global_scale is None else 32 * rounded.global_scale.numel()
    return grid.bits + extra / rounded.codes.numel()


def _at(bits: int, assignment: Assignment) -> Assignment:
    if not assignment.scheme.weight.plain:
        raise UsageError(
            f"Integer widths are tried, and {assignment.site.name} becomes {assignment.scheme.label}; name schemes "
            "('--schemes fp8a16,nvfp4a16,q4_k'), or give a recipe of integers such as rtn-w4a16-g128."
        )
    weight = dataclasses.replace(assignment.scheme.weight, bits=bits)
    return dataclasses.replace(assignment, scheme=dataclasses.replace(assignment.scheme, weight=weight))


def _rounding(name: str, stage: Quantizer) -> RTN:
    """A stage that rounds to nearest what another rounds, to a scheme."""
    blocks = name in MIXTURES or name in BLOCK_NAMES or Scheme.parse(name).weight.superblock is not None
    search = without_importance(getattr(stage, "range_search", "minmax"))
    return RTN(
        scheme=name,
        targets=stage.targets,
        tie=stage.tie,
        group_size_mismatch=stage.group_size_mismatch,
        unrecognised=stage.unrecognised,
        range_search="ggml" if blocks else "mse" if search in ("hqq", "ggml") else search,
    )
