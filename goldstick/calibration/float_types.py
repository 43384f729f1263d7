"""What numbers a layer may have that is to be quantized: none wider than float32, in which scales are stored."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

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
        raise SourceError(f"{model} is float64 ({double[0]}{more}), which is not quantized. {remedy}")


def refuse_unfit(parameters: Mapping[str, Tensor], kind: str) -> None:
    """Refuse layers in memory that cannot be quantized, before anything is done to them.

    Args:
        parameters: Those of the layers, by name.
        kind: The class of the model.

    Raises:
        SourceError: One is float64, or a float of eight bits or fewer, or on the meta device; the message names it.
    """
    remedy = "Convert it to float32 first (model.float()), or exclude the layer."
    refuse_float64({name: one.dtype for name, one in parameters.items()}, f"The {kind}", remedy)
    for name, one in parameters.items():
        if one.is_meta:
            raise SourceError(
                f"{name} of this {kind} is on the meta device, where there are no numbers: load the weights first, or "
                "exclude the layer."
            )
        if one.is_floating_point() and one.itemsize == 1:
            dtype = str(one.dtype).removeprefix("torch.")
            raise SourceError(
                f"{name} of this {kind} is {dtype}, codes of a layer that was quantized before. Give it the numbers "
                "that they stand for, in float32 or bfloat16, or exclude the layer."
            )
