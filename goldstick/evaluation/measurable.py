"""Which of the three kinds of models that tasks know a loaded model is."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.span_model import SpanModel


def measurable(model: nn.Module, directory: Path | str) -> LanguageModel | SpanModel | ImageClassifier:
    """Pair a transformers model with the tokenizer or the image processor in ``directory``.

    The name of its class says what it is for: ``…ForQuestionAnswering``, ``…ForImageClassification``, and all
    others are taken for causal language models. Raises SourceError where the directory lacks what makes its inputs.
    """
    name = type(model).__name__
    if name.endswith("ForQuestionAnswering"):
        return SpanModel.from_directory(model, directory)
    if name.endswith("ForImageClassification"):
        return ImageClassifier.from_directory(model, directory)
    return LanguageModel.from_directory(model, directory)
