"""Samples that are tensors: images, sounds, or anything else a model's forward takes, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from goldstick.calibration.data.samples import TOKENS_PER_BATCH

Sample = Mapping[str, Tensor]

#: Values of a batch at most, such as two pictures of 224 × 224 pixels, unless one sample has more.
VALUES_PER_BATCH = 2**18


@dataclass(frozen=True, kw_only=True)
class TensorSamples:
    """Samples of keyword arguments, and what is worth knowing of them.

    Attributes:
        samples: Each the arguments of one sample; what several have, joined along the first dimension, is a batch.
        dataset: Where they come from.
        available: Samples the data would have given.
        asked: Samples the recipe asked for.
        facts: What else the report says.
        remarks: What else the user should know.
    """

    samples: Sequence[Sample]
    dataset: str
    available: int
    asked: int
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all tensors, their names, shapes and dtypes, in order: equal fingerprints, equal data."""
        digest = hashlib.sha256()
        for sample in self.samples:
            for name in sorted(sample):
                value = sample[name].contiguous()
                digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
                digest.update(np.ascontiguousarray(value.reshape(-1).view(torch.uint8).numpy()).tobytes())
        return digest.hexdigest()

    def batches(self) -> list[dict[str, Tensor]]:
        """Samples of equal shapes, some at a time, so that nothing is padded; in the order of their first ones."""
        return [_joined(part) for part in _parts(self.samples, None)]

    def training_batches(self, samples: int) -> Callable[[int], list[dict[str, Tensor]]]:
        """A function from the number of an epoch to its batches, of up to ``samples`` samples of equal shapes each.

        The order is drawn anew for each epoch from torch's generator.
        """

        def epoch(number: int) -> list[dict[str, Tensor]]:
            order = torch.randperm(len(self.samples)).tolist()
            return [_joined(part) for part in _parts([self.samples[place] for place in order], samples)]

        return epoch

    def audit(self) -> dict[str, int | float | str]:
        """What the report says of the data."""
        shapes = {name: tuple(value.shape) for name, value in self.samples[0].items()}
        return {
            "dataset": self.dataset,
            "samples": len(self.samples),
            "windows_available": self.available,
            "arguments": ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items()),
            **self.facts,
            "fingerprint": self.fingerprint,
        }

    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the data."""
        short = (
            f"{self.dataset} gives {len(self.samples)} of the {self.asked} calibration samples that the recipe asks "
            "for; the result is calibrated on these"
        )
        return (*([short] if len(self.samples) < self.asked else []), *self.remarks)


def _parts(samples: Iterable[Sample], most: int | None) -> list[list[Sample]]:
    alike: dict[object, list[Sample]] = {}
    for sample in samples:
        alike.setdefault(tuple((name, value.shape) for name, value in sample.items()), []).append(sample)
    found = []
    for group in alike.values():
        size = _size(group[0]) if most is None else most
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def _size(sample: Sample) -> int:
    """How many samples of this shape make a batch."""
    tokens = max((value.shape[1] for value in sample.values() if _is_tokens(value)), default=1)
    values = max(value.numel() for value in sample.values())
    return max(1, min(TOKENS_PER_BATCH // max(tokens, 1), VALUES_PER_BATCH // max(values, 1)))


def _is_tokens(value: Tensor) -> bool:
    return value.ndim == 2 and not value.is_floating_point()


def _joined(samples: Sequence[Sample]) -> dict[str, Tensor]:
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}
