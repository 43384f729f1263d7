"""Calibration data for a checkpoint: the recipe's data set through the checkpoint's own tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from goldstick.calibration.data.chat import chat_ids
from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.calibration.data.packing import pack, pad_rows
from goldstick.calibration.data.samples import CalibrationData
from goldstick.calibration.data.sources import Document, read_documents
from goldstick.errors import DataError
from goldstick.evaluation.forward import embedding_rows
from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.load.find_model import REFERENCE, data_directory
from goldstick.jobs.load.random_tokens import random_tokens
from goldstick.jobs.load.runnable import with_tokenizer
from goldstick.recipes.calibration import Calibration

_IDS = "input_ids"


def calibration_data(
    settings: Calibration, directory: Path, data_dir: Path | None
) -> Callable[[nn.Module], CalibrationData]:
    """A function from the model in memory to its calibration data; samples are no longer than the model's context.

    Args:
        settings: The recipe's ``calibration``.
        directory: Where the tokenizer lies.
        data_dir: Where sets known by name lie; ``reference`` comes with goldstick where it is not among them.

    Raises:
        DataError: When called: the data are missing, malformed or too few, or are not for this model.
    """

    def read(model: nn.Module) -> CalibrationData:
        _refuse_no_text(model, settings.dataset)
        language_model = with_tokenizer(model, directory)
        documents = read_documents(settings.dataset, home_of(settings.dataset, data_dir), settings.text_field)
        make = pack if settings.packing else pad_rows
        with ChatTemplates() as templates:
            data = make(
                (_encode(document, language_model, templates) for document in documents),
                dataset=settings.dataset,
                samples=settings.samples,
                seq_len=min(settings.seq_len, language_model.context_length),
                seed=settings.seed,
                allow_short=settings.allow_short,
                unknown_id=_unknown_id(language_model.tokenizer),
            )
        _check_vocabulary(data, language_model, directory)
        return replace(data, random=random_tokens(settings, model, language_model.tokenizer))

    return read


def home_of(dataset: str, data_dir: Path | None) -> Path | None:
    """Where a set known by name lies: the set ``reference`` is bundled, whatever the model."""
    if dataset == REFERENCE and (data_dir is None or not any(data_dir.glob("text/calibration.txt*"))):
        return data_directory(REFERENCE, None)
    return data_dir


def _refuse_no_text(model: nn.Module, dataset: str) -> None:
    """Refuse a model that has no argument for token ids, before anything is read."""
    named = [one.name for one in inspect.signature(model.forward).parameters.values() if one.kind != one.VAR_KEYWORD]
    if named and _IDS not in named and getattr(model, "main_input_name", _IDS) != _IDS:
        taken = ", ".join([*named[:4], "…"] if len(named) > 4 else named)
        raise DataError(
            f"{dataset} is text, and the forward of {type(model).__name__} takes no {_IDS} but {taken}: give data of "
            "the kind that it reads, such as a folder of images or of audio, or tensors (.safetensors, .npz)"
        )


def _encode(document: Document, language_model: LanguageModel, templates: ChatTemplates) -> list[int]:
    if document.blank:  # some tokenizers would make a beginning-of-text token of it
        return []
    if isinstance(document.content, str):
        return language_model.encode(document.content)
    return chat_ids(language_model.tokenizer, document.content, document.place, templates)


def _unknown_id(tokenizer: Any) -> int | None:
    """The token for what a tokenizer does not know; not where it also marks the beginning or end of every text."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    marks = (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return None if unknown is None or unknown in marks else int(unknown)


def _check_vocabulary(data: CalibrationData, language_model: LanguageModel, directory: Path) -> None:
    """Refuse ids that the embedding has no row for, which would crash far from here, or read foreign memory."""
    model = language_model.model
    rows, largest = embedding_rows(model), int(data.tokens.max())
    if rows is not None and largest >= rows:
        raise DataError(
            f"the tokenizer in {directory} ({type(language_model.tokenizer).__name__}, {len(language_model.tokenizer)} "
            f"tokens) gives token id {largest} for {data.dataset}, and the embedding of {type(model).__name__} has "
            f"{rows} rows: they are not of one model; put the model's own tokenizer files beside its weights"
        )
