"""A checkpoint or a GGUF file as a model together with what makes its inputs."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from goldstick.checkpoint.gguf.directory import checkpoint_directory, missing_tokenizer
from goldstick.errors import SourceError
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.looking_back import require_looking_back
from goldstick.evaluation.measurable import measurable, require_causal
from goldstick.evaluation.span_model import SpanModel
from goldstick.jobs.load.load import load


def load_with_inputs(path: Path) -> LanguageModel | SpanModel | ImageClassifier:
    """A model with its tokenizer or image processor.

    Args:
        path: A checkpoint directory, or a GGUF file, whose tokenizer is made of its own entries.

    Raises:
        SourceError: There is no such model, or nothing that makes its inputs, with the reason.
        UsageError: It is a model of another kind, such as a language model of which a token sees those behind it.
    """
    with checkpoint_directory(path) as directory:
        require_tokenizer(directory)
        return with_inputs(load(directory), directory)


def with_inputs(model: nn.Module, directory: Path) -> LanguageModel | SpanModel | ImageClassifier:
    """Pair a loaded model with the tokenizer or image processor in a directory; see :func:`load_with_inputs`."""
    found = measurable(model, directory)
    if isinstance(found, LanguageModel):
        require_looking_back(model)
    return found


def load_language_model(path: Path) -> LanguageModel:
    """A causal language model with its tokenizer; see :func:`load_with_inputs`.

    Raises:
        UsageError: It is a model of another kind.
    """
    with checkpoint_directory(path) as directory:
        model = load(directory)
        require_causal(model)
        require_looking_back(model)
        return with_tokenizer(model, directory)


def with_tokenizer(model: nn.Module, path: Path) -> LanguageModel:
    """Pair a loaded model with the tokenizer of the checkpoint or GGUF file it came from."""
    with checkpoint_directory(path) as directory:
        require_tokenizer(directory)
        return LanguageModel.from_directory(model, directory)


def require_tokenizer(directory: Path) -> None:
    """Refuse the directory of a GGUF file of which no tokenizer can be made.

    Raises:
        SourceError: There is none, with the reason and what would help.
    """
    reason = missing_tokenizer(directory)
    if reason is not None:
        raise SourceError(reason)
