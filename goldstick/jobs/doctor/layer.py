"""Layer: the scales, zeros and codes of one quantized matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks
from goldstick.core.stored_scale import stored_scale
from goldstick.errors import GoldstickError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import INPUT_MULTIPLIER, INPUT_SCALE
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding, Severity
from goldstick.jobs.doctor.floats import FLOAT16_MAX

_AGAIN = "quantize the layer again from the float model"
_DEAD = f"nothing where the float weights are 0 too; otherwise {_AGAIN}"
#: A share of dead groups beyond which the layer was not pruned but lost.
_MOST_DEAD = 0.5
#: The share of negative scales from which on they are no accident.
_CHOSEN = 1 / 8


@dataclass(kw_only=True)
class Counts:
    """What the codes of a matrix are, counted.

    Attributes:
        codes: How many codes.
        groups: How many groups.
        ends: Codes that are the smallest or the largest of the grid.
        dead: Groups whose codes all equal the zero, so that their weights are 0, and whose scale is not the one that
            groups of weights that were 0 are given.
        stuck: Groups of 16 codes or more that all lie at the ends.
        largest: The largest |weight|.
    """

    codes: int = 0
    groups: int = 0
    ends: int = 0
    dead: int = 0
    stuck: int = 0
    largest: float = 0.0


def layer_findings(examined: Examined, layer: StoredLayer) -> Iterator[Finding]:
    """What is wrong with the numbers of one matrix; nothing where its tensors are not what the config declares."""
    assert examined.stored is not None
    try:
        parts = examined.stored.read(layer)
    except GoldstickError:  # told by the checks of the headers
        return
    yield from _input_findings(layer, parts)
    try:
        tensor = examined.stored.format.unpack(parts, layer.scheme, layer.shape[-1])
    except GoldstickError as error:
        reordered = "g_idx" in str(error) and examined.table.get("desc_act") is True
        yield _finding(
            "remark" if reordered else "fault",
            "unreadable",
            "layers that cannot be read",
            f"{layer.name}: {error}",
            "export the checkpoint again with the tool it came from",
        )
        return
    broken = list(_scale_findings(layer, tensor, signed=examined.stored.format.signed_scales))
    yield from broken
    yield from _code_findings(layer, tensor, finite=not broken)


def _input_findings(layer: StoredLayer, parts: dict[str, Tensor]) -> Iterator[Finding]:
    for suffix in (INPUT_SCALE, INPUT_MULTIPLIER):
        values = parts.get(suffix)
        if values is not None and not bool((values.isfinite() & (values > 0)).all()):
            what = "what inputs are scaled with is zero, negative, NaN or infinite"
            yield _finding("fault", "zero-scales", what, layer.name + suffix, "calibrate the layer again")


def _scale_findings(layer: StoredLayer, tensor: QuantizedTensor, *, signed: bool) -> Iterator[Finding]:
    scale, count = tensor.steps().float(), tensor.scale.numel()
    kinds = [("nan-scales", "scales that are NaN or infinite", ~scale.isfinite())]
    if tensor.grid.superblock is None:  # where small groups beside large ones get the integer 0
        kinds.append(("zero-scales", "scales of zero, which make their weights 0", scale == 0))
    if not signed and not _signs_chosen(tensor):
        kinds.append(("negative-scales", "negative scales, which no writer of this format makes", scale < 0))
    for check, what, wrong in kinds:
        if number := int(wrong.sum()):
            yield _finding("fault", check, what, f"{layer.name}: {number} of {count}", _AGAIN)
    shifts = tensor.shifts()
    if shifts is not None and (number := int((~shifts.isfinite()).sum())):
        yield _finding("fault", "nan-scales", "zeros that are NaN or infinite", f"{layer.name}: {number}", _AGAIN)


def _signs_chosen(tensor: QuantizedTensor) -> bool:
    """Whether a writer chose the signs of a layer's scales, as auto-round does: about half of them are negative then.

    With the sign of the largest weight in a group, that weight has the one code more on its side.
    """
    negative = float((tensor.steps() < 0).float().mean())
    return tensor.grid.symmetric and tensor.grid.integers and negative >= _CHOSEN


def _code_findings(layer: StoredLayer, tensor: QuantizedTensor, finite: bool) -> Iterator[Finding]:
    found, grid = count_codes(tensor), tensor.grid
    if not found.codes:
        return
    if found.dead:
        severity: Severity = "fault" if found.dead > _MOST_DEAD * found.groups else "remark"
        what = "groups whose codes all equal the zero, so that their weights are 0"
        yield _finding(severity, "dead-groups", what, f"{layer.name}: {found.dead} of {found.groups}", _DEAD)
    if saturated := _saturation(found, grid.bits):
        stuck = f", {found.stuck} groups wholly" if found.stuck else ""
        what = "codes saturate: far more than usual lie at the ends of their range"
        where = f"{layer.name}: {100 * found.ends / found.codes:.0f} %{stuck}"
        yield _finding(saturated, "saturated", what, where, _AGAIN)
    if finite and found.largest > FLOAT16_MAX:
        half = tensor.scale.dtype is torch.float16
        yield _finding(
            "fault" if half else "remark",
            "float16",
            "weights that float16 has no room for: run in float16, the model gives NaN",
            f"{layer.name}: up to {found.largest:.3g}",
            "run it in bfloat16 or float32",
        )


def _saturation(found: Counts, bits: int) -> Severity | None:
    """How bad the share of codes at the ends is.

    Codes spread evenly have a share of 2 in 2^bits there, and a range that was not cut puts two of every group there.
    """
    share, even = found.ends / found.codes, 2 / 2**bits
    if bits > 1 and share > (1 + even) / 2:
        return "fault"
    usual = even + 2 * found.groups / found.codes
    return "remark" if bits > 2 and (share > 2 * usual or found.stuck) else None


def count_codes(tensor: QuantizedTensor) -> Counts:
    """Count what the codes of a matrix are, some million at a time."""
    grid, inputs = tensor.grid, tensor.in_features
    width, found = grid.group_width(inputs), Counts()
    codes = tensor.codes.reshape(-1, inputs)
    scale = tensor.flattened().steps().reshape(len(codes), tensor.scale.shape[-1]).float()
    element = grid.float_element
    zero = _zeros(tensor).reshape(scale.shape)
    empty = _given_to_zeros(tensor).reshape(scale.shape)
    for rows in row_chunks(codes):
        for group in range(scale.shape[1]):
            columns = slice(group * width, (group + 1) * width)
            part = codes[rows, columns]
            if element is None:
                sides = (0.0, float(grid.code_max))
                _count(found, part.float(), scale[rows, group], zero[rows, group], empty[rows, group], sides)
            else:
                ends = (-element.largest if element.signed else element.values[0], element.values[-1])
                zeros = torch.zeros(len(part), dtype=torch.float32)
                _count(found, element.numbers(part), scale[rows, group], zeros, empty[rows, group], ends)
    return found


def _given_to_zeros(tensor: QuantizedTensor) -> Tensor:
    """Whether a group has the scale that goldstick gives groups whose weights are all 0, bool [..., groups].

    1 for integers, the least there is for floats: no weight but 0 is likely to lead to it.
    """
    scale = tensor.flattened().scale
    if tensor.grid.superblock is not None:
        return tensor.flattened().steps() == 0
    if tensor.grid.float_element is None:
        return scale == 1
    divisor = None if tensor.global_scale is None else torch.ones(1, dtype=torch.float32)
    return scale == stored_scale(torch.zeros(1, dtype=torch.float32), tensor.grid, scale.dtype, divisor)


def _zeros(tensor: QuantizedTensor) -> Tensor:
    """What stands for 0 among the codes, float32 [..., groups]; 0 in superblocks' groups without a scale."""
    shifts = tensor.shifts()
    if shifts is None:
        return torch.full_like(tensor.scale, tensor.grid.midpoint, dtype=torch.float32)
    if not tensor.grid.minimums:
        return shifts.float()
    steps = tensor.steps()
    return torch.where(steps == 0, 0.0, shifts / steps)


def _count(
    found: Counts, codes: Tensor, scale: Tensor, zero: Tensor, empty: Tensor, extremes: tuple[float, float]
) -> None:
    """Add one group of some rows: codes or their values [rows, width], scale, zero and empty [rows]."""
    low, high = codes.amin(1), codes.amax(1)
    nothing = (low == zero) & (high == zero)
    lost = nothing & ~empty
    ends = ((codes == extremes[0]) | (codes == extremes[1])) & (lost | ~nothing)[:, None]  # a zero may be an end
    found.codes += codes.numel()
    found.groups += len(codes)
    found.ends += int(ends.sum())
    found.dead += int(lost.sum())
    if codes.shape[1] >= 16:
        found.stuck += int(ends.all(1).sum())
    reach = torch.maximum((low - zero).abs(), (high - zero).abs()) * scale.abs()
    found.largest = max(found.largest, float(reach.nan_to_num(posinf=0.0).max()))


def _finding(severity: Severity, check: str, what: str, where: str, remedy: str) -> Finding:
    return Finding(severity=severity, check=check, what=what, where=(where,), remedy=remedy)
