"""Calibration data of every kind for a checkpoint: text, images, recordings, rows that name them, tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from goldstick.calibration.data.kinds import Kind, find_kind
from goldstick.calibration.data.packing import drawn_samples, require_enough
from goldstick.calibration.data.samples import CalibrationSet
from goldstick.calibration.data.sources import require_documents
from goldstick.calibration.data.stored_tensors import read_tensors
from goldstick.calibration.data.tensor_samples import TensorSamples
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.forward import embedding_rows
from goldstick.evaluation.tokenizer import has_vocabulary, read_tokenizer
from goldstick.jobs.load.calibration_data import calibration_data, home_of
from goldstick.jobs.load.media_samples import media_samples
from goldstick.jobs.load.random_tokens import special_ids
from goldstick.jobs.load.runnable import require_tokenizer
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe


def calibration_inputs(
    settings: Calibration, directory: Path, data_dir: Path | None
) -> Callable[[nn.Module], CalibrationSet]:
    """A function from the model in memory to its calibration data, of the kind that lies at the recipe's ``dataset``.

    Args:
        settings: The recipe's ``calibration``.
        directory: Where the tokenizer and the processors lie.
        data_dir: Where sets known by name lie.

    Raises:
        DataError: When called: the data are missing, malformed or too few, or are not for this model.
    """

    def read(model: nn.Module) -> CalibrationSet:
        found = find_kind(settings.dataset, settings.text_field)
        if found.kind is Kind.TEXT:
            return calibration_data(settings, directory, data_dir)(model)
        if found.kind is Kind.TENSORS:
            data = _tensor_samples(settings, model)
        else:
            data = media_samples(found, settings, model, directory)
        return _fitting(data, model)

    return read


def require_calibration(recipe: Recipe, directory: Path, data_dir: Path | None) -> None:
    """Raise what a run of the recipe would where its calibration data, or the tokenizer for them, are not there.

    Args:
        recipe: The recipe; one that looks at no data needs none.
        directory: Where the tokenizer lies. One whose files are there is not read.
        data_dir: Where sets known by name lie.

    Raises:
        DataError: They are missing; the message says what to provide. Text is not read, so it may be malformed.
        SourceError: They are text, and there is no tokenizer.
    """
    if needs_data(recipe.stages):
        settings = recipe.calibration
        if find_kind(settings.dataset, settings.text_field).kind is Kind.TEXT:
            require_documents(settings.dataset, home_of(settings.dataset, data_dir))
            require_tokenizer(directory)
            if not has_vocabulary(directory):
                read_tokenizer(directory)  # some need no files


def require_tasks(tasks: Sequence[str], data_dir: Path | None) -> None:
    """Raise what an evaluation on tasks would where there is no such task, or its data are not there.

    Args:
        tasks: Their names; none need nothing.
        data_dir: Where local data lie.

    Raises:
        UsageError: There is no such task.
        DataError: The data are missing; those of other packages' tasks are not looked at.
    """
    data = DataSource(data_dir)
    for task in find_tasks(tasks).values() if tasks else ():
        dataset = getattr(task, "dataset", None)
        if isinstance(dataset, Dataset):
            data.require(dataset)


def _tensor_samples(settings: Calibration, model: nn.Module) -> TensorSamples:
    stored = read_tensors(Path(settings.dataset))
    available = len(next(iter(stored.values())))
    require_enough(
        available, settings.dataset, settings.samples, "samples", ("tensors of more samples",), settings.allow_short
    )
    drawn: list[int] = drawn_samples(available, settings.samples, settings.seed).tolist()
    return TensorSamples(
        samples=[{name: value[place : place + 1] for name, value in stored.items()} for place in drawn],
        dataset=settings.dataset,
        available=available,
        asked=settings.samples,
        facts={"kind": "tensors"},
    )


def _fitting(data: TensorSamples, model: nn.Module) -> TensorSamples:
    """Samples in the model's dtypes, whose names are arguments of its forward and whose token ids it knows."""
    parameters = inspect.signature(model.forward).parameters
    named = {name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    unknown = [name for name in data.samples[0] if name not in named]
    if unknown:
        taken = ", ".join(name for name in parameters if name in named)
        raise DataError(
            f"{data.dataset} gives {', '.join(map(repr, unknown[:5]))}, and the forward of {type(model).__name__} "
            f"takes {taken[:500]}: use data that are for this model"
        )
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    samples = [{name: _converted(value, dtype) for name, value in sample.items()} for sample in data.samples]
    _check_ids(samples, model, data.dataset)
    return replace(data, samples=samples)


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.is_floating_point():
        return value.to(dtype)
    return value if value.dtype is torch.bool else value.to(torch.int64)


def _check_ids(samples: list[dict[str, Tensor]], model: nn.Module, dataset: str) -> None:
    """Refuse ids that the embedding has no row for, but for those that stand for an image or a sound."""
    rows = embedding_rows(model)
    if rows is None:
        return
    standing = special_ids(getattr(model, "config", None))
    for sample in samples:
        ids = sample.get("input_ids")
        if ids is None:
            continue
        strange = sorted(set(ids[(ids < 0) | (ids >= rows)].tolist()) - standing)
        if strange:
            raise DataError(
                f"{dataset} gives token id {strange[0]}, and the embedding of {type(model).__name__} has {rows} rows: "
                "they are not of one model; put the model's own tokenizer and processor files beside its weights"
            )
