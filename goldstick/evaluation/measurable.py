"""Which of the three kinds of models that tasks know a loaded model is."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from goldstick.errors import UsageError
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.span_model import SpanModel


def measurable(model: nn.Module, directory: Path | str) -> LanguageModel | SpanModel | ImageClassifier:
    """Pair a transformers model with the tokenizer or the image processor in ``directory``.

    The name of its class says what it is for: ``…ForQuestionAnswering``, ``…ForImageClassification``; the others have
    to be causal language models. Raises SourceError where the directory lacks what makes its inputs, UsageError for a
    model of another kind.
    """
    name = type(model).__name__
    if name.endswith("ForQuestionAnswering"):
        return SpanModel.from_directory(model, directory)
    if name.endswith("ForImageClassification"):
        return ImageClassifier.from_directory(model, directory)
    require_causal(model)
    return LanguageModel.from_directory(model, directory)


def require_causal(model: nn.Module) -> None:
    """Refuse a transformers model that does not go on from a text: an encoder, or one with an encoder beside it.

    A masked language model would give figures, too: of tokens that it has seen. Modules that are no transformers models
    are taken at their word. Raises UsageError.
    """
    writes = getattr(model, "can_generate", None)
    if (writes is None or writes()) and not getattr(model.config, "is_encoder_decoder", False):
        return
    raise UsageError(
        f"a {type(model).__name__} is no causal language model, which goes on from a text; goldstick measures those, "
        "encoders with a span head (…ForQuestionAnswering) and image classifiers (…ForImageClassification), and lets "
        "the first write. 'goldstick compare' compares the outputs of any two models of one kind"
    )
