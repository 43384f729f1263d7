"""Sites that no calibration batch reached: a note on each, and what the user is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goldstick.core.counts import counted
from goldstick.errors import StructureError

#: The note of such a site.
NOTE = "unreached"

#: What may be behind it, beside the data.
NOT_CALLED = "no data reach a layer that is not called itself, where another module multiplies by its weight"

_SAID = "no calibration batch reached it, so it is rounded without data"
_NAMED = 20

Notes = Mapping[str, float | str]


def note_unreached(notes: Notes) -> dict[str, float | str]:
    """The notes of a site that no batch reached."""
    return {**notes, NOTE: _SAID}


def refuse_nothing_reached(notes: Mapping[str, Notes]) -> None:
    """Refuse a calibration that showed no site anything.

    Args:
        notes: Site that was to be calibrated → its notes.

    Raises:
        StructureError: No batch reached any of them.
    """
    if notes and all(NOTE in found for found in notes.values()):
        raise StructureError(
            f"No calibration batch reached {next(iter(notes))}; exclude it, or use other data ({NOT_CALLED})."
        )


def unreached_warnings(notes: Mapping[str, Notes]) -> Sequence[str]:
    """What the report says of sites that no batch reached, by their names; the first of many.

    Args:
        notes: Site → its notes.
    """
    names = [name for name, found in notes.items() if NOTE in found]
    if not names:
        return []
    many = counted(len(names), "layer")
    more = f" and {len(names) - _NAMED} more (each has a note {NOTE!r})" if len(names) > _NAMED else ""
    return [
        f"No calibration batch reached {many}, rounded without data: {', '.join(names[:_NAMED])}{more}. Use data that "
        f"reach them, such as images for the parts that see ({NOT_CALLED}), or exclude them to leave them in float"
    ]
