"""The models of the frontier: language models, an encoder that answers questions, an encoder–decoder for speech.

The encoder is what ``make encoder`` trains (``build/minilm``), the other is Whisper-base out of the packages that
``make real-models`` installs. ``widened`` is made by ``python -m benchmarks.widened_model build/widened-model``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from benchmarks.accuracy_cases import Subject
from benchmarks.searched_models import searched_subjects
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.kl import token_kl
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.recipes.calibration import Calibration
from tools.minilm_squad.data import make_windows, read_questions
from tools.real_models.model import FLOAT, Workplace
from tools.real_models.speech import Utterance, read_wave
from tools.real_models.whisper import WHISPER, calibration_recordings, recordings

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared")
GROUPS = ("w4a16-g128", "w3a16-g128", "w2a16-g64", "nvfp4a16", "mxfp4a16")

Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Calibration data.

    Attributes:
        batches: Keyword arguments of the forward.
        fingerprint: Equal ones, equal data.
        ids: int64 [samples, seq_len], where that is all there is to them.
    """

    batches: Sequence[Batch]
    fingerprint: str
    ids: Tensor | None = None


class FrontierModel(Protocol):
    """A model, what is drawn to calibrate it, and how far a changed one is from it.

    Attributes:
        directory: Its checkpoint.
        loaded_by: The class of transformers that loads it.
        schemes: What its weights become.
        exclude: Patterns of layers that stay float beside those that a recipe leaves alone.
    """

    directory: Path
    loaded_by: str
    schemes: Sequence[str]
    exclude: Sequence[str]

    def drawn(self, model: nn.Module, seed: int) -> Drawn:
        """Calibration data of a seed."""

    def divergence(self, model: nn.Module, changed: nn.Module) -> Items:
        """KL of what they predict, in nats, item by item of the held-out data."""


def load(model: FrontierModel) -> Any:
    """The float model."""
    return getattr(transformers, model.loaded_by).from_pretrained(model.directory, dtype=torch.float32).eval()


def frontier_models() -> dict[str, FrontierModel]:
    """All models by name."""
    subjects = searched_subjects()
    # Layers of stories260K have 172 inputs, which no group divides.
    by_row = ("w4a16-channel", "w3a16-channel", "w2a16-channel")
    return {
        "reference": Text(subjects["reference"], GROUPS),
        "widened": Text(subjects["widened"], GROUPS),
        "stories260k": Text(subjects["stories260k"], by_row),
        "minilm-squad": Questions(),
        "whisper-base": Speech(),
    }


class Text:
    """A language model: 128 windows of 256 tokens, and KL of the next tokens of held-out text.

    Args:
        subject: The model and its data.
        schemes: What its weights become.
    """

    loaded_by, exclude = "AutoModelForCausalLM", ()

    def __init__(self, subject: Subject, schemes: Sequence[str]) -> None:
        self.directory, self.schemes, self._subject = subject.directory, schemes, subject

    def drawn(self, model: nn.Module, seed: int) -> Drawn:
        """Of its own text."""
        settings = Calibration(dataset=self._subject.dataset, samples=128, seq_len=256, seed=seed)
        data = calibration_data(settings, self.directory, self._subject.data)(model)
        return Drawn(batches=data.batches(), fingerprint=data.fingerprint, ids=data.ids)

    def divergence(self, model: nn.Module, changed: nn.Module) -> Items:
        """Document by document."""
        task, data = self._subject.task, DataSource(self._subject.data)
        first, second = (LanguageModel.from_directory(one, self.directory) for one in (model, changed))
        found = divergence(first, second, [task], data)[task]
        return Items.from_dict(found["details"]["items"]["token_kl"])


class Questions:
    """MiniLM with a span head: 128 windows of SQuAD's training part; KL of where the answer starts and ends."""

    directory = ROOT / "build" / "minilm" / "training" / "model"
    loaded_by, schemes, exclude = "AutoModelForQuestionAnswering", GROUPS, ("*qa_outputs*",)
    _tokens, _held_out = 160, 512

    def drawn(self, model: nn.Module, seed: int) -> Drawn:
        """Questions of the articles that the head was trained on."""
        return _fingerprinted(self._batches("train_44_articles-v1.1.json.gz", 128, seed))

    def divergence(self, model: nn.Module, changed: nn.Module) -> Items:
        """Window by window, the mean of both ends, over questions of other articles."""
        sums: list[float] = []
        for batch in self._batches("dev_subset-v1.1.json.gz", self._held_out, 0):
            with torch.inference_mode():
                right, tried = model(**batch), changed(**batch)
            starts = token_kl(right.start_logits, tried.start_logits)
            ends = token_kl(right.end_logits, tried.end_logits)
            sums += ((starts + ends) / 2).tolist()
        return Items(values=sums, weights=[1] * len(sums), factor=1.0)

    def _batches(self, file: str, count: int, seed: int) -> list[Batch]:
        """Windows that are full, so that nothing is padded, of questions drawn at random."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.directory)
        known = read_questions(SHARED / "data" / "squad" / file)
        questions = Random(seed).sample(known, min(8 * count, len(known)))
        cut = make_windows(tokenizer, questions, self._tokens, 64)
        windows = [one for one in cut if len(one.ids) == self._tokens][:count]
        ids, types = torch.tensor([one.ids for one in windows]), torch.tensor([one.types for one in windows])
        return [
            {"input_ids": some, "token_type_ids": kinds, "attention_mask": torch.ones_like(some)}
            for some, kinds in zip(ids.split(8), types.split(8), strict=True)
        ]


class Speech:
    """Whisper-base: recordings of three sentences; KL of the next tokens of what is said in held-out ones."""

    loaded_by, schemes, exclude = "WhisperForConditionalGeneration", GROUPS, ("*conv1", "*conv2")
    _held_out = 40

    def __init__(self) -> None:
        build = ROOT / "build" / "real-models"
        site = next((build / "environment").glob("lib/python*/site-packages"), build)
        self._place = Workplace(site=site, build=build / WHISPER.name, shared=SHARED)
        self.directory = self._place.path(FLOAT)

    def drawn(self, model: nn.Module, seed: int) -> Drawn:
        """Recordings in an order of the seed's: there are no others."""
        found = self._batches(calibration_recordings(self._place))
        return _fingerprinted(Random(seed).sample(found, len(found)))

    def divergence(self, model: nn.Module, changed: nn.Module) -> Items:
        """Recording by recording, with what is said given word by word."""
        sums, tokens = [], []
        for batch in self._batches(recordings(self._place)[: self._held_out]):
            with torch.inference_mode():
                kl = token_kl(model(**batch).logits, changed(**batch).logits)[0]
            sums.append(float(kl.sum()))
            tokens.append(len(kl))
        return Items(values=sums, weights=tokens, factor=1.0)

    def _batches(self, heard: Sequence[Utterance]) -> list[Batch]:
        processor = transformers.AutoProcessor.from_pretrained(self.directory)
        processor.tokenizer.set_prefix_tokens(language="en", task="transcribe", predict_timestamps=False)
        return [
            {
                "input_features": processor(
                    read_wave(one.file), sampling_rate=16_000, return_tensors="pt"
                ).input_features,
                "decoder_input_ids": torch.tensor([processor.tokenizer(" " + one.text).input_ids[:-1]]),
            }
            for one in heard
        ]


def _fingerprinted(batches: Sequence[Batch]) -> Drawn:
    digest = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            digest.update(batch[name].contiguous().numpy().tobytes())
    return Drawn(batches=batches, fingerprint=digest.hexdigest())
