"""Observing: the inputs of a group, seen once for all stages that act on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from goldstick.algorithms.base import DataRequirement
from goldstick.calibration.original import OriginalPasses
from goldstick.calibration.passes import Passes
from goldstick.calibration.patches import rows_read_by
from goldstick.calibration.task import Assignment
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.input_ends import InputEnds
from goldstick.core.inputs import InputObserver
from goldstick.core.layout import Layout
from goldstick.core.token_mask import TokenMask
from goldstick.errors import DataError
from goldstick.structure.network import Network, Site

Rows = tuple[Tensor, Tensor | None, Tensor | None]  # of a batch, which of them count, those of the float model


def observe_group(passes: Passes, group: Sequence[Assignment], masks: Sequence[TokenMask]) -> InputObserver:
    """The statistic of what arrives at a group of layers that read one tensor.

    Args:
        passes: The passes, with the group at hand.
        group: The layers.
        masks: Which tokens of each batch count.
    """
    if _ends_are_enough(group):
        return _ends(passes, group)
    observer = InputObserver(group[0].site.in_features)
    looks = [observer.observe] if passes.together else [observer.observe_range, observer.observe]
    for look in looks:  # one batch at a time cannot be held, so its range is looked at first
        for captured in passes.captured_inputs():
            rows = rows_read_by(captured.module, captured.tensor)
            if rows is not None and rows.shape[-1] != group[0].site.in_features:
                raise DataError(
                    f"Batch {captured.batch + 1} of the calibration data reaches {group[0].site.name} as "
                    f"{list(captured.tensor.shape)}, which it does not take. Give batches that the model's forward "
                    "takes, or leave that one out."
                )
            if rows is not None:
                look(rows, masks[captured.batch].of(rows))
        if look == observer.observe_range:
            observer.share_ranges(passes.ranks)
    observer.share(passes.ranks)
    convolves = group[0].site.layout is Layout.CONVOLUTION
    return _ends(passes, group) if convolves and not observer.tokens else observer  # in groups, rows differ


def rows_of_batches(
    passes: Passes, original: OriginalPasses | None, masks: Sequence[TokenMask]
) -> Iterator[tuple[int, Rows]]:
    """Each batch's number and its inputs of the group at hand, with those of the float model where it runs beside."""
    floats = {} if original is None else {captured.batch: captured for captured in original.captured_inputs()}
    for captured in passes.captured_inputs():
        rows = rows_read_by(captured.module, captured.tensor)
        if rows is not None:
            other = floats.get(captured.batch)
            beside = None if other is None else rows_read_by(other.module, other.tensor)
            yield captured.batch, (rows, masks[captured.batch].of(rows), beside)


def chooses_tokens(network: Network, passes: Passes, site: Site) -> bool:
    """Whether a layer may be given a choice of tokens, as one of a list of experts: the float model may choose as many,
    and others.
    """
    path = site.module.removeprefix(site.block or "").removeprefix(".").split(".")
    start = network.model.get_submodule(site.block or "")
    above = [start.get_submodule(".".join(path[:length])) for length in range(1, len(path))]
    flat = any(captured.tensor.ndim == 2 for captured in passes.captured_inputs())
    return flat and any(isinstance(module, nn.ModuleList) for module in above)


def _ends_are_enough(group: Sequence[Assignment]) -> bool:
    """Whether convolutions are asked for the ends of their inputs alone: patches would take many times as much."""
    asked = {task.stage.data_requirement for task in group}
    return group[0].site.layout is Layout.CONVOLUTION and asked == {DataRequirement.NONE}


def _ends(passes: Passes, group: Sequence[Assignment]) -> InputEnds:
    observer = InputEnds(group[0].site.in_features)
    for captured in passes.captured_inputs():
        observer.widen(captured.tensor)
    observer.share(passes.ranks)
    return observer


def observe_cross_covariance(
    passes: Passes,
    original: OriginalPasses,
    group: Sequence[Assignment],
    masks: Sequence[TokenMask],
    scale: Tensor | None = None,
) -> CrossCovarianceObserver | None:
    """As :func:`observe_group`, and beside it what arrives at the same layers of the float model.

    Args:
        passes: The passes, with the group at hand.
        original: Those of the float model, which has the same groups and came no further.
        group: The layers.
        masks: Which tokens of each batch count.
        scale: What the group's inputs were divided by and the float model's were not, [in]; ``None`` for nothing.

    Returns:
        ``None`` where tokens cannot be paired: other tokens, or another number of them, came to the float layers.
    """
    observer = CrossCovarianceObserver(group[0].site.in_features, scale)
    looks = [observer.observe] if passes.together else [observer.observe_range, observer.observe]
    for look in looks:
        paired = True
        for rows, mask, floats in _pairs(passes, original, masks):
            paired = floats is None or floats.shape == rows.shape
            if not paired:
                break
            look(rows, mask, floats)
        if passes.ranks.any(not paired):
            return None
        if look == observer.observe_range:
            observer.share_ranges(passes.ranks)
    observer.share(passes.ranks)
    return observer


def _pairs(passes: Passes, original: OriginalPasses, masks: Sequence[TokenMask]) -> Iterator[Rows]:
    floats = original.captured_inputs()
    other = next(floats, None)
    for captured in passes.captured_inputs():
        while other is not None and other.batch < captured.batch:
            other = next(floats, None)
        rows = rows_read_by(captured.module, captured.tensor)
        if rows is not None:
            met = other is not None and other.batch == captured.batch
            beside = rows_read_by(other.module, other.tensor) if met and other is not None else None
            yield rows, masks[captured.batch].of(rows), beside
