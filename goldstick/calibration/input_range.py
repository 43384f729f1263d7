"""Static input ranges: what a sweep saw of a layer's inputs becomes one scale for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from goldstick.calibration.unreached import NOT_CALLED
from goldstick.core.counts import counted
from goldstick.core.edits import Quantize
from goldstick.core.input_range import input_range
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError

#: The note of a site whose inputs were all 0.
NOTE = "zero_inputs"

_SAID = "all inputs seen were 0, so the range of its inputs is not known"
_NAMED = 20


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
    if not _saw(observer):
        raise QuantizationError(
            f"{edit.site} becomes {edit.scheme.label}, which needs the range of its inputs, and no calibration input "
            f"reached it. Use more or other data ({NOT_CALLED}), give it a dynamic scheme in 'overrides', or "
            "exclude it."
        )
    try:
        scale, zero = input_range(*_ends(observer), grid)
    except QuantizationError as error:
        raise QuantizationError(f"The inputs of {edit.site} cannot be quantized: {error}") from error
    return dataclasses.replace(edit, input_scale=scale, input_zero=zero)


def range_notes(scheme: Scheme, observer: Any) -> dict[str, float | str]:
    """The note of a site whose static range is one of nothing but 0; nothing of others."""
    if scheme.static_input and _saw(observer):
        with suppress(QuantizationError):  # which with_input_range raises
            return {} if any(_ends(observer)) else {NOTE: _SAID}
    return {}


def zero_input_warnings(notes: Mapping[str, Mapping[str, float | str]]) -> Sequence[str]:
    """What the report says of sites whose inputs had a range of nothing but 0, by their names; the first of many.

    Args:
        notes: Site → its notes.
    """
    names = [name for name, found in notes.items() if NOTE in found]
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more (each has a note {NOTE!r})" if len(names) > _NAMED else ""
    return [
        f"All inputs that calibration showed {counted(len(names), 'layer')} with a static range were 0, so the range "
        f"is a guess and other inputs come out wrong: {', '.join(names[:_NAMED])}{more}. Use other data, a scheme with "
        "a dynamic range in 'overrides', or exclude them"
    ]


def _saw(observer: Any) -> bool:
    observed = isinstance(observer, InputObserver)
    return observed and bool(observer.tokens or observer.dropped or getattr(observer, "seen", False))


def _ends(observer: InputObserver) -> tuple[float, float]:
    return float(observer.lowest().min()), float(observer.highest().max())
