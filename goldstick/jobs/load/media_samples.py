"""Images, recordings and conversations about them, as a checkpoint's own processors give them to its model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.calibration.data.audio import read_audio
from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.calibration.data.kinds import Found
from goldstick.calibration.data.media_rows import MediaRow
from goldstick.calibration.data.packing import drawn_samples, require_enough
from goldstick.calibration.data.tensor_samples import Sample, TensorSamples
from goldstick.core.counts import counted
from goldstick.errors import DataError, GoldstickError
from goldstick.evaluation.image_preparation import read_image
from goldstick.evaluation.processors import read_processor
from goldstick.jobs.load.transcripts import Transcripts
from goldstick.recipes.calibration import Calibration

Prepare = Callable[[MediaRow], Mapping[str, Any]]


def media_samples(found: Found, settings: Calibration, model: nn.Module, directory: Path) -> TensorSamples:
    """Samples that a seed draws among images, recordings, or rows that name them.

    Rows that belong to a text or a conversation go through the checkpoint's processor and its chat template; images
    alone through its image processor, recordings alone or with a transcript through its feature extractor.

    Args:
        found: What lies at the data's path.
        settings: The recipe's ``calibration``.
        model: The model, whose forward says which arguments it takes.
        directory: Where the processors lie.

    Raises:
        DataError: There are too few, one cannot be read, or the model takes no such inputs.
    """
    rows, dataset = found.rows, settings.dataset
    of_what = "recordings" if _is_speech(found) else "images" if _is_pictures(found) else "rows"
    require_enough(len(rows), dataset, settings.samples, of_what, (f"more {of_what}",), settings.allow_short)
    drawn = [rows[place] for place in drawn_samples(len(rows), settings.samples, settings.seed).tolist()]
    taken = set(inspect.signature(model.forward).parameters)
    facts: dict[str, int | float | str] = {"kind": of_what}
    if found.other_files:
        facts["other_files"] = found.other_files
    remarks: list[str] = []
    with ChatTemplates() as templates:
        prepare: Prepare
        if _is_speech(found):
            transcripts = Transcripts(model, directory, settings.seq_len)
            prepare = _speech(directory, transcripts)
            spoken = sum(row.text is not None for row in drawn)
            facts["transcripts"] = spoken if transcripts.wanted else 0
            if transcripts.wanted and spoken < len(drawn):
                remarks.append(
                    f"no transcript for {len(drawn) - spoken} of {counted(len(drawn), 'recording')} of {dataset}, of "
                    "which the decoder saw its first token only; name transcripts in a .jsonl, .csv or .tsv file"
                )
        elif _is_pictures(found):
            prepare = _pictures(model, directory, dataset)
        else:
            prepare = _Conversations(directory, templates)
        samples = [_sample(row, prepare, taken, type(model).__name__) for row in drawn]
    return TensorSamples(
        samples=samples,
        dataset=dataset,
        available=len(rows),
        asked=settings.samples,
        facts=facts,
        remarks=remarks,
    )


def _is_speech(found: Found) -> bool:
    return all(len(row.audio) == 1 and not row.images and not row.messages for row in found.rows)


def _is_pictures(found: Found) -> bool:
    return all(len(row.images) == 1 and not row.audio and not row.messages and row.text is None for row in found.rows)


def _sample(row: MediaRow, prepare: Prepare, taken: set[str], model: str) -> Sample:
    try:
        prepared = prepare(row)
    except GoldstickError:
        raise
    except Exception as error:  # whatever a processor raises on what it is given
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        raise DataError(
            f"{row.place}: the model's processor refuses it ({reason}); leave it out, or mend it"
        ) from error
    found = {name: torch.as_tensor(value) for name, value in prepared.items() if name in taken and value is not None}
    if not found:
        raise DataError(
            f"{row.place} becomes {', '.join(sorted(prepared)) or 'nothing'}, which the forward of {model} does not "
            "take; use data of the kind that this model reads"
        )
    return found


def _pictures(model: nn.Module, directory: Path, dataset: str) -> Prepare:
    if getattr(model, "main_input_name", "") == "input_ids":
        raise DataError(
            f"{dataset} holds images alone, and {type(model).__name__} reads text with them, or text only: give .jsonl "
            "rows of messages that name images, or text"
        )
    processor = read_processor(directory, "image")

    def prepare(row: MediaRow) -> Mapping[str, Any]:
        found: Mapping[str, Any] = processor(read_image(row.images[0]), return_tensors="pt")
        return found

    return prepare


def _speech(directory: Path, transcripts: Transcripts) -> Prepare:
    extractor = read_processor(directory, "audio")
    rate = int(getattr(extractor, "sampling_rate", 16_000))

    def prepare(row: MediaRow) -> Mapping[str, Any]:
        sound = read_audio(row.audio[0], rate).numpy()
        found = dict(extractor(sound, sampling_rate=rate, return_tensors="pt"))
        return {**found, **transcripts.of(row.text)}

    return prepare


class _Conversations:
    """Texts and conversations about images and recordings, through the processor of several kinds of input.

    Args:
        directory: Where it lies.
        templates: Where its chat template runs.
    """

    def __init__(self, directory: Path, templates: ChatTemplates) -> None:
        self._processor = read_processor(directory, "several")
        self._tokenizer: Any = getattr(self._processor, "tokenizer", None)
        if self._tokenizer is None:
            raise DataError(
                f"the processor in {directory} ({type(self._processor).__name__}) takes text or images or audio, "
                "and rows of the data hold several of them: give rows of the kind that this model reads"
            )
        self._templates, self._directory = templates, directory
        extractor = getattr(self._processor, "feature_extractor", None)
        self._rate = int(getattr(extractor, "sampling_rate", 16_000))

    def __call__(self, row: MediaRow) -> Mapping[str, Any]:
        """The model's arguments for a row."""
        text = self._text(row)
        beginning = getattr(self._tokenizer, "bos_token", None)
        given: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
        if beginning is not None and text.startswith(beginning):
            given["add_special_tokens"] = False
        if row.images:
            given["images"] = [[read_image(file) for file in row.images]]
        if row.audio:
            given["audio"] = [read_audio(file, self._rate).numpy() for file in row.audio]
        found: Mapping[str, Any] = self._processor(**given)
        return found

    def _text(self, row: MediaRow) -> str:
        template = self._template()
        if template is None:
            if row.messages:
                raise DataError(
                    f"{row.place} is a conversation, and the processor in {self._directory} has no chat template: give "
                    "a checkpoint that was tuned for chat, or rows with a field 'text'"
                )
            return row.text or ""
        messages = [{"role": role, "content": list(parts)} for role, parts in row.messages]
        if not messages:
            parts = [*({"type": "image"} for _ in row.images), *({"type": "audio"} for _ in row.audio)]
            parts += [{"type": "text", "text": row.text}] if row.text else []
            messages = [{"role": "user", "content": parts}]
        try:
            return self._templates.write(template, messages, self._tokenizer.special_tokens_map)
        except DataError as error:
            raise DataError(
                f"{row.place}: the chat template in {self._directory} refuses this conversation ({error})"
            ) from error

    def _template(self) -> str | None:
        for owner in (self._processor, self._tokenizer):
            template = getattr(owner, "chat_template", None)
            if isinstance(template, Mapping):
                template = template.get("default")
            if isinstance(template, str) and template:
                return template
        return None
