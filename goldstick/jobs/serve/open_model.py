"""A model from disk to an engine."""

from __future__ import annotations

from pathlib import Path

from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.measurable import require_causal
from goldstick.jobs.load.load import load
from goldstick.jobs.load.runnable import with_tokenizer
from goldstick.jobs.optimize.optimize import optimize as optimize_model


def open_model(directory: Path, *, optimize: bool = True) -> tuple[LanguageModel, list[str]]:
    """A causal language model with its tokenizer, and what optimizing it left as it was, in words.

    Args:
        directory: A float or compressed checkpoint, or a GGUF file.
        optimize: Whether to rearrange a compressed model for speed.

    Raises:
        SourceError: There is no such model.
        UsageError: It is a model of another kind.
    """
    loaded = load(directory)
    require_causal(loaded)
    left = [str(change) for change in optimize_model(loaded).left] if optimize else []
    return with_tokenizer(loaded, directory), left
