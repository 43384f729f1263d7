"""Validate a block: what was decided for its layers beside rounding to nearest, on batches held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from goldstick import surgery
from goldstick.calibration.held_out import Passes
from goldstick.calibration.input_range import zero_input_warnings
from goldstick.calibration.unreached import unreached_warnings
from goldstick.core.counts import counted
from goldstick.core.edits import Quantize, SetWeight
from goldstick.structure.network import Network

#: The note of a layer that was judged, or could not be.
NOTE = "validation"
_ROUNDED = "rounding to nearest was kept"
_NAMED = 10


def validate_block(
    network: Network, edits: Mapping[str, Quantize], rounded: Mapping[str, Quantize], judge: Passes
) -> dict[str, Quantize]:
    """The edits of a block with notes, some of them rounding to nearest. The block is left with what is decided.

    Layer after layer, in the order they were decided in, is rounded to nearest, and stays so where the loss falls; then
    all of them are together. The loss is never above that of what was decided, nor of all rounded to nearest.

    Args:
        network: The network; the block holds the rounded weights of ``edits``.
        edits: Site name → what was decided for it.
        rounded: Site name → the edit of rounding to nearest.
        judge: The block's forward on the batches held out, and what the float block gives.
    """
    rivals = {name: rival for name, rival in rounded.items() if _differ(rival, edits[name])}
    loss = before = judge.loss()
    chosen: set[str] = set()
    for name, rival in rivals.items():
        _place(network, rival)
        tried = judge.loss()
        if tried < loss:
            loss = tried
            chosen.add(name)
        else:
            _place(network, edits[name])
    if len(rivals) > 1 and chosen != set(rivals):
        for rival in rivals.values():
            _place(network, rival)
        tried = judge.loss()
        if tried < loss:
            loss, chosen = tried, set(rivals)
        for name in rivals.keys() - chosen:
            _place(network, edits[name])
    figures = {"held_out_error": loss, "held_out_error_calibrated": before}
    said = f"{_ROUNDED}: so the block's error on rows held out is {loss:.4g}, not {before:.4g}"
    found = {}
    for name, edit in edits.items():
        notes: dict[str, float | str] = dict(figures) if name in rivals else {}
        if name in chosen:
            notes[NOTE] = said
        tensor = rivals[name].tensor if name in chosen else edit.tensor
        found[name] = dataclasses.replace(edit, tensor=tensor, notes={**edit.notes, **notes})
    return found


def validation_warnings(notes: Mapping[str, Mapping[str, float | str]]) -> Sequence[str]:
    """What the report says of layers where calibration did not help, and of what was not judged; the first of many.

    Args:
        notes: Site → its notes.
    """
    said = {name: str(found[NOTE]) for name, found in notes.items() if NOTE in found}
    kept = [name for name, words in said.items() if words.startswith(_ROUNDED)]
    warnings = []
    if kept:
        more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        warnings.append(
            f"Calibration did not help {counted(len(kept), 'layer')} on rows held out, so rounding to nearest was kept "
            f"there: {', '.join(kept[:_NAMED])}{more}"
        )
    return warnings


def calibration_warnings(notes: Mapping[str, Mapping[str, float | str]]) -> Sequence[str]:
    """What the report says of sites that no batch reached, or nothing but 0, and where calibration did not help."""
    return [*unreached_warnings(notes), *zero_input_warnings(notes), *validation_warnings(notes)]


def _place(network: Network, edit: Quantize) -> None:
    surgery.apply(network, [SetWeight(site=edit.site, weight=edit.tensor.dequantize())])


def _differ(first: Quantize, second: Quantize) -> bool:
    return not bool((first.tensor.dequantize() == second.tensor.dequantize()).all())
