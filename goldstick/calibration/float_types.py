"""The types of numbers a model may have that is to be quantized: quantized layers run in no wider one than float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from goldstick.errors import SourceError


def refuse_float64(dtypes: Mapping[str, torch.dtype], model: str, remedy: str) -> None:
    """Refuse a model of which something is float64, before anything is done to it.

    Args:
        dtypes: What is in it, by name: parameters, or the type that its config names.
        model: What it is called.
        remedy: How it becomes float32.

    Raises:
        SourceError: Something is float64; the message names it.
    """
    double = [name for name, dtype in dtypes.items() if dtype is torch.float64]
    if double:
        more = f" and {len(double) - 1} more" if len(double) > 1 else ""
        raise SourceError(f"{model} is float64 ({double[0]}{more}), in which no quantized layer runs. {remedy}")
