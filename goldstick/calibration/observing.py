"""Observing: the inputs of a group, seen once for all stages that act on it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from goldstick.calibration.passes import Passes
from goldstick.calibration.patches import rows_read_by
from goldstick.calibration.task import Task
from goldstick.core.inputs import InputObserver


def observe_group(passes: Passes, group: Sequence[Task], masks: Sequence[Tensor | None]) -> InputObserver:
    """The statistic of what arrives at a group of layers that read one tensor.

    Args:
        passes: The passes, with the group at hand.
        group: The layers.
        masks: Which tokens of each batch count, [rows, tokens]; ``None`` for all.
    """
    observer = InputObserver(group[0].site.in_features)
    looks = [observer.observe] if passes.together else [observer.observe_range, observer.observe]
    for look in looks:  # one batch at a time cannot be held, so its range is looked at first
        for arrival in passes.arrivals():
            rows = rows_read_by(arrival.module, arrival.tensor)
            if rows is not None:
                look(rows, _fitting(masks[arrival.batch], rows))
    return observer


def _fitting(mask: Tensor | None, rows: Tensor) -> Tensor | None:
    """The mask in the shape of the rows' tokens; ``None`` where these are no longer the tokens of the batch."""
    tokens = rows.shape[:-1]
    return mask.reshape(tokens) if mask is not None and mask.numel() == tokens.numel() else None
