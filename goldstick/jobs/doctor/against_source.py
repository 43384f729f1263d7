"""Against the source: quantized weights beside the float ones that they were made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.checkpoint.source import SourceCheckpoint
from goldstick.core.layout import Layout
from goldstick.core.progress import Progress
from goldstick.core.rows import as_rows, row_chunks
from goldstick.errors import GoldstickError
from goldstick.formats.base import StoredLayer
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding

#: Orders in which codes are packed by mistake: what happened → which column of so many lies where.
_ORDERS = {
    "the two codes of each byte are exchanged": (1, 0),
    "the codes of each word are in reverse order": (7, 6, 5, 4, 3, 2, 1, 0),
    "the codes of each word are in AWQ's order": (0, 2, 4, 6, 1, 3, 5, 7),
    "the codes of each word were put out of AWQ's order, and never were in it": (0, 4, 1, 5, 2, 6, 3, 7),
    "the codes of each block of 32 are in pairs of 16 columns apart": tuple(i // 2 + 16 * (i % 2) for i in range(32)),
    "the codes of each block of 32 are in pairs of neighbours": tuple((2 * i) % 32 + i // 16 for i in range(32)),
}
#: How many times the error of plain rounding a method may leave in a weight that it did not scale or turn.
_FAR = 3.0
#: What is left of an error where the order of the codes was all of it.
_EXPLAINED = 0.5


def source_findings(examined: Examined, source: Path, progress: Progress) -> Iterator[Finding]:
    """Quantized matrices that are not those of the source.

    The error ‖W' - W‖ of the dequantized W' is compared with that of rounding W to the same grid. Where it is far
    larger, the orders in which codes are packed by mistake are tried.

    Args:
        examined: The quantized checkpoint.
        source: The directory that it was made from.
        progress: Called with (description, done, total).

    Raises:
        SourceError: The source is no model that can be read.
    """
    floats, ours = open_source(source), open_source(examined.directory)
    unknown = []
    for done, layer in enumerate(examined.layers):
        progress("comparing with the source", done, len(examined.layers))
        info = floats.tensors.get(layer.name)
        if info is None or info.shape != ours.tensors[layer.name].shape:
            unknown.append(layer.name)
            continue
        try:
            yield from _compared(layer, ours, info.read())
        except GoldstickError:  # told by the checks of the layer
            continue
    if unknown:
        yield Finding(
            severity="remark",
            check="source",
            what="the source has no such weight, or one of another shape, so that it was not compared",
            where=tuple(unknown),
            remedy="none is needed where the source stores experts in another way; otherwise give the right source",
        )


def _compared(layer: StoredLayer, ours: SourceCheckpoint, original: Tensor) -> Iterator[Finding]:
    layout = Layout(layer.kind)
    expected = as_rows(layout.to_matrix(original))
    found = as_rows(layout.to_matrix(ours.tensors[layer.name].read()))
    rounded = as_rows(quantize_with_search(expected.contiguous(), layer.scheme.weight, "minmax").dequantize())
    left, usual = _error(found, expected), _error(rounded, expected)
    if not left > _FAR * usual:
        return
    columns = expected.shape[-1]
    for what, order in _ORDERS.items():
        if columns % len(order) == 0:
            arranged = found.reshape(len(found), -1, len(order))[..., torch.tensor(order)].flatten(1)
            if _error(arranged, expected) < _EXPLAINED * left:
                yield Finding(
                    severity="fault",
                    check="code-order",
                    what=f"weights are those of the source in another order: {what}",
                    where=(layer.name,),
                    remedy="pack the codes again in the order of the format, or export with the tool they came from",
                )
                return
    yield Finding(
        severity="remark",
        check="source",
        what="weights are far from the source's, as rotated, smoothed or trained ones are",
        where=(f"{layer.name}: error {left:.3g} of the weight, where rounding leaves {usual:.3g}",),
        remedy="compare the outputs of the two ('goldstick compare'); if they differ much, quantize the layer again",
    )


def _error(found: Tensor, expected: Tensor) -> float:
    """‖W' - W‖ / ‖W‖, in float64, some rows at a time."""
    square = size = 0.0
    for rows in row_chunks(expected, copies=4):
        numbers = expected[rows].double()
        square += float((found[rows].double() - numbers).square().sum())
        size += float(numbers.square().sum())
    return math.sqrt(square / size if size else square)
