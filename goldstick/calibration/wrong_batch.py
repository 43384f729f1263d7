"""A batch that does not run: the error says which, what it holds, where it failed, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor

from goldstick.errors import DataError
from goldstick.structure.wrong_inputs import wrong_inputs

_SHOWN = bool | int | float | None


def naming_batch(batch: Mapping[str, Any], place: int, taker: str) -> AbstractContextManager[None]:
    """Run a forward on a batch; what it raises comes out as a DataError that names the batch.

    Args:
        batch: Keyword arguments of the model's forward.
        place: The batch's number, from 1.
        taker: What runs, as the message says it.
    """
    return wrong_inputs(partial(_refused, batch, place, taker))


def _refused(batch: Mapping[str, Any], place: int, taker: str, reason: str) -> DataError:
    held = ", ".join(f"{name} {_described(value)}" for name, value in batch.items())
    return DataError(
        f"Batch {place} of the calibration data ({held}) does not run through {taker}: {reason}. Give batches that the "
        "model's forward takes, or leave that one out."
    )


def _described(value: Any) -> str:
    """The shape of a tensor; a short value itself, the kind of any other."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return repr(value) if isinstance(value, _SHOWN) else f"of type {type(value).__name__}"
