"""By what a model's answers are compared: the divergence of its predictions, or the error of its outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from goldstick.errors import DataError
from goldstick.evaluation.kl import token_kl
from goldstick.structure.trace import is_cache, tensors_in

#: What a model gives for a batch: its logits, or each of its outputs by name.
Answer = Any


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far two answers of a model are apart.

    Attributes:
        name: ``kl``: the mean over all predictions of KL(p ‖ q) in nats, p and q the softmax over the last dimension of
            ``logits``; or ``squared error``: the mean over all outputs of Σ (a − b)² / Σ a².
    """

    name: Literal["kl", "squared error"] = "kl"

    def answer(self, output: Any) -> Answer:
        """What of a forward's output is compared."""
        return output.logits if self.name == "kl" else floating_outputs(output)

    def apart(self, right: Sequence[Answer], tried: Iterable[Answer]) -> float:
        """How far answers to the same batches are from the right ones; summed in float64, rounded once."""
        if self.name == "kl":
            return mean_kl(right, tried)
        squares: dict[str, list[float]] = {}
        sizes: dict[str, list[float]] = {}
        for first, second in zip(right, tried, strict=True):
            for name, value in first.items():
                exact = value.double()
                squares.setdefault(name, []).append(float((exact - second[name].double()).square().sum()))
                sizes.setdefault(name, []).append(float(exact.square().sum()))
        apart = [math.fsum(squares[name]) / max(math.fsum(sizes[name]), 1e-30) for name in squares]
        return math.fsum(apart) / len(apart)

    def predictions(self, right: Sequence[Answer]) -> int:
        """How many predictions are compared: distributions, or samples."""
        if self.name == "kl":
            return sum(logits[..., 0].numel() for logits in right)
        return sum(len(next(iter(outputs.values()))) for outputs in right)


def measure_for(model: nn.Module, batch: Mapping[str, Tensor]) -> Measure:
    """By what to compare a model: its predictions where it writes tokens or chooses one class, else its outputs.

    Raises:
        DataError: It does not run on the batch.
    """
    try:
        with torch.no_grad():
            output = model(**batch)
    except Exception as error:  # any code of the model may fail, in any way
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in batch.items())
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DataError(
            f"{type(model).__name__} does not run on {shapes} ({reason}). Give --inputs FILE with a tensor for each "
            "argument of its forward, or data of the kind that it reads."
        ) from error
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim < 2 or logits.shape[-1] < 2:
        return Measure(name="squared error")
    chooses = logits.ndim == 2 and len(floating_outputs(output)) == 1
    return Measure() if chooses or getattr(model, "can_generate", bool)() else Measure(name="squared error")


def floating_outputs(output: Any) -> dict[str, Tensor]:
    """Each floating tensor of a forward's output by its name or place, caches left out.

    Raises:
        DataError: It holds none.
    """
    fields = output.items() if isinstance(output, Mapping) else [("output", output)]
    found = {
        f"{name} {place}": value
        for name, field in fields
        if not is_cache(field)
        for place, value in enumerate(tensors_in(field))
        if value.is_floating_point()
    }
    if not found:
        raise DataError("The model gives no floating-point output to compare; give inputs for which it gives one.")
    return found


def mean_kl(right: Sequence[Tensor], tried: Iterable[Tensor]) -> float:
    """The mean over all tokens of KL(p ‖ q) in nats, of batches of logits; exact over tokens, rounded once."""
    values: list[float] = []
    for first, second in zip(right, tried, strict=True):
        values += token_kl(first, second).flatten().tolist()
    return math.fsum(values) / len(values)
