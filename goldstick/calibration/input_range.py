"""Static input ranges: what a sweep saw of a layer's inputs becomes one scale for all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from goldstick.core.edits import Quantize
from goldstick.core.input_range import input_range
from goldstick.core.inputs import InputObserver
from goldstick.errors import QuantizationError


def with_input_range(edit: Quantize, observer: Any) -> Quantize:
    """An edit with the scale (and zero) of its layer's input, where its scheme has a static input grid.

    The range is that of all inputs seen, so none of them is clipped by more than half a step.

    Args:
        edit: What was decided for the weight; returned as it is where its scheme has no static input grid.
        observer: What its algorithm saw of the layer's inputs, a :class:`InputObserver`.

    Raises:
        QuantizationError: No input was seen, or more than 1 % of them hold NaN or infinity.
    """
    grid = edit.scheme.activation
    if grid is None or not edit.scheme.static_input:
        return edit
    observed = isinstance(observer, InputObserver)
    seen = observed and (observer.tokens or observer.dropped or getattr(observer, "seen", False))
    if not seen:
        raise QuantizationError(
            f"{edit.site} becomes {edit.scheme.label}, which needs the range of its inputs, and no calibration input "
            "reached it. Use more or other data, give it a dynamic scheme in 'overrides', or exclude it."
        )
    try:
        scale, zero = input_range(float(observer.lowest().min()), float(observer.highest().max()), grid)
    except QuantizationError as error:
        raise QuantizationError(f"The inputs of {edit.site} cannot be quantized: {error}") from error
    return dataclasses.replace(edit, input_scale=scale, input_zero=zero)
