"""Calibration data for a checkpoint: the recipe's data set through the checkpoint's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from goldstick.calibration.data import CalibrationData, pack, read_texts
from goldstick.evaluation.language_model import LanguageModel
from goldstick.recipes.recipe import Calibration


def calibration_data(
    settings: Calibration, directory: Path, data_dir: Path | None
) -> Callable[[nn.Module], CalibrationData]:
    """A function from the model in memory to its calibration data; windows are no longer than the model's context.

    Args:
        settings: The recipe's ``calibration``.
        directory: Where the tokenizer lies.
        data_dir: Where sets known by name lie.

    Raises:
        DataError: When called: the data are missing, or too few.
    """

    def read(model: nn.Module) -> CalibrationData:
        language_model = LanguageModel.from_directory(model, directory)
        return pack(
            read_texts(settings.dataset, data_dir),
            language_model.encode,
            dataset=settings.dataset,
            samples=settings.samples,
            seq_len=min(settings.seq_len, language_model.context_length),
            seed=settings.seed,
        )

    return read
