"""Runs that train and are stopped: the checkpoint they start from, what stops them, what they leave."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer


def tiny_source(folder: Path) -> Path:
    """A checkpoint of a tiny model with a tokenizer."""
    FAMILIES["llama_mha"]().to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


class Stopped(BaseException):
    """Something that nothing catches."""


class Watch:
    """Notes the steps, and stops the run at one of them."""

    def __init__(self, stage: str = "", step: int = 0) -> None:
        self.at, self.steps = (stage, step), list[tuple[str, int]]()

    def __call__(self, description: str, done: int, total: int) -> None:
        """Told a step."""
        self.steps.append((description, done))
        if (description, done) == self.at:
            raise Stopped


def weights(directory: Path) -> dict[str, bytes]:
    """The files of weights."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.suffix == ".safetensors"}
