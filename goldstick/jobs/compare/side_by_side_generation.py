"""Two checkpoints go on from the same prompts."""

from __future__ import annotations

from pathlib import Path

import torch

from goldstick.core.counts import counted
from goldstick.core.progress import Progress, quiet
from goldstick.errors import UsageError
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.side_by_side_generation import PromptDivergence, generate_side_by_side
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.runnable import load_language_model
from goldstick.recipes.calibration import Calibration
from goldstick.report.generation import GeneratedText, Generation


def compare_generation(
    first: Path,
    second: Path,
    text: Calibration,
    max_new_tokens: int,
    *,
    data_dir: Path | None = None,
    progress: Progress = quiet,
) -> Generation:
    """Let both models go on from samples of a text, the second reading the first one's; both are in memory.

    Args:
        first: The checkpoint directory of the model that counts as right.
        second: The other's.
        text: The prompts: samples of a text, of one length.
        max_new_tokens: The most tokens to generate.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.

    Raises:
        UsageError: The models have different tokenizers, or prompts and texts are longer than their context.
        DataError: The text is missing, malformed or too short.
    """
    right, tried = (load_language_model(directory) for directory in (first, second))
    if right.tokenizer_hash != tried.tokenizer_hash:
        raise UsageError(f"{first} and {second} have different tokenizers, so they do not read the same prompts.")
    data = calibration_data(text, first, data_dir)(right.model)
    prompts: list[list[int]] = data.ids.tolist()
    with torch.no_grad():
        found = generate_side_by_side(
            right, tried, prompts, max_new_tokens, lambda done, total: progress("generating", done, total)
        )
    return Generation(
        inputs=f"{counted(len(prompts), 'prompt')} of {counted(data.ids.shape[1], 'token')} from {text.dataset}",
        texts=tuple(_text(right, prompt, one) for prompt, one in zip(prompts, found, strict=True)),
    )


def _text(model: LanguageModel, prompt: list[int], one: PromptDivergence) -> GeneratedText:
    place = one.first_difference
    return GeneratedText(
        prompt=model.decode(prompt),
        text=model.decode(one.tokens),
        kl=tuple(one.kl),
        first_difference=None if place is None else place + 1,
        first_word=None if place is None else model.tokenizer.decode([one.tokens[place]]),
        other_word=None if one.other_token is None else model.tokenizer.decode([one.other_token]),
    )
