"""What a model is measured on: text, data of the kind that it reads, or inputs that are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from goldstick.calibration.data.samples import CalibrationData
from goldstick.calibration.data.tensor_samples import TensorSamples
from goldstick.core.counts import counted
from goldstick.hf.example_inputs import fixed_inputs, give_inputs, shapes_of_inputs
from goldstick.jobs.load.calibration_inputs import calibration_inputs
from goldstick.recipes.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class TriedOn:
    """Batches and what is said of them.

    Attributes:
        batches: Keyword arguments of the model's forward.
        words: What they are.
        fingerprint: Tells them from others.
    """

    batches: Sequence[Mapping[str, Tensor]]
    words: str
    fingerprint: str


def tried_on(
    model: nn.Module, directory: Path, data: Calibration, inputs: Mapping[str, Tensor] | None, data_dir: Path | None
) -> TriedOn:
    """The inputs that are given, or else the data.

    Args:
        model: The model.
        directory: Where its tokenizer and processors lie.
        data: The data, which lie at ``dataset``.
        inputs: Keyword arguments of its forward; ``None`` for data.
        data_dir: Where sets known by name lie.

    Raises:
        DataError: They are missing, malformed, too few, or not for this model.
    """
    if inputs is not None:
        give_inputs(model, inputs)
        given = fixed_inputs(model)
        shapes = ", ".join(f"{name} {shape}" for name, shape in shapes_of_inputs(given).items())
        whole = TensorSamples(samples=[given], dataset="", available=1, asked=1)
        return TriedOn(batches=[given], words=f"the inputs {shapes}", fingerprint=whole.fingerprint)
    found = calibration_inputs(data, directory, data_dir)(model)
    if isinstance(found, CalibrationData):
        rows, tokens = found.ids.shape
        words = f"{counted(rows, 'sample')} of {counted(tokens, 'token')} from {data.dataset}"
    else:
        words = f"{counted(data.samples, 'sample')} from {data.dataset}"
    return TriedOn(batches=found.batches(), words=words, fingerprint=found.fingerprint)
