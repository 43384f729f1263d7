"""Bench of a whole forward pass: a checkpoint as loaded and optimized, beside the float model it was made of."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.errors import UsageError
from goldstick.hf.example_inputs import fixed_inputs, give_inputs
from goldstick.jobs.bench.stopwatch import in_turn, seconds_of, verdict
from goldstick.jobs.load.load import load
from goldstick.jobs.optimize.optimize import optimize
from goldstick.nn import PackedWeight

FLOAT = "float"


@dataclass(frozen=True, kw_only=True)
class ForwardTime:
    """What one forward pass takes.

    Attributes:
        network: ``as loaded``, ``optimized``, or ``float`` of the baseline.
        ms: Median of one call.
        times_float: Median of the rounds' ratios to the baseline; ``None`` without one.
    """

    network: str
    ms: float
    times_float: float | None

    @property
    def verdict(self) -> str | None:
        """``faster``, ``as fast`` or ``SLOWER``, against the baseline; ``None`` without one, and of itself."""
        return None if self.times_float is None or self.network == FLOAT else verdict(self.times_float)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "verdict": self.verdict}


@torch.no_grad()
def bench_forward(
    directory: Path, seconds: float, *, inputs: Mapping[str, Tensor] | None = None, baseline: Path | None = None
) -> list[ForwardTime]:
    """Time a forward pass of a checkpoint, in turn as it is loaded, optimized, and of the float model.

    Args:
        directory: The checkpoint.
        seconds: For each network.
        inputs: Keyword arguments of its forward; those that it carries or asks for where ``None``.
        baseline: The model it was made of.

    Raises:
        DataError: Nothing says how to run it; the message says what to give.
        UsageError: The baseline is quantized too.
    """
    model: Any = load(directory)
    give_inputs(model, inputs)
    given = dict(fixed_inputs(model))
    faster = copy.deepcopy(model)
    optimize(faster, given)
    networks = {"as loaded": model, "optimized": faster}
    if baseline is not None:
        networks[FLOAT] = load(baseline)
        if any(isinstance(module, PackedWeight) for module in networks[FLOAT].modules()):
            raise UsageError(f"{baseline} is quantized: give the float model that {directory} was made of.")
    timed = {name: partial(seconds_of, partial(network, **given)) for name, network in networks.items()}
    kept = in_turn(timed, seconds * len(networks))
    return [
        ForwardTime(
            network=name,
            ms=statistics.median(own[name] for own in kept) * 1e3,
            times_float=statistics.median(own[FLOAT] / own[name] for own in kept) if FLOAT in networks else None,
        )
        for name in networks
    ]
