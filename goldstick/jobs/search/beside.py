"""Other checkpoints of the same model, whoever made them, judged on the rows that judge a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.errors import UsageError
from goldstick.jobs.load.find_model import find_model
from goldstick.jobs.load.load import load
from goldstick.jobs.search.losses import METRICS, RowLosses


def judge_beside(checkpoints: Sequence[str], rows: RowLosses) -> list[dict[str, Any]]:
    """For each checkpoint its name, the bytes of its weight files, and what it loses on the rows.

    Args:
        checkpoints: Directories, or GGUF files, that goldstick loads.
        rows: The rows, and the float model's predictions on them.

    Raises:
        CheckpointError, FormatError, SourceError: One cannot be loaded.
        UsageError: One has another vocabulary, so it is no form of the same model.
    """
    found = []
    for name in checkpoints:
        with checkpoint_directory(find_model(name)) as directory:
            nbytes = sum(
                path.stat().st_size for ending in ("*.safetensors", "*.gguf") for path in directory.glob(ending)
            )
            model: Any = load(directory, dtype=torch.float32).eval()
            vocabulary = model.config.vocab_size
            expected = rows.right[0].shape[-1] if rows.right else vocabulary  # a rank may have no rows
            if vocabulary != expected:
                raise UsageError(
                    f"{name} knows {vocabulary:,} tokens and the model that is searched {expected:,}: give another "
                    "form of the same model, or leave it out."
                )
            kl, larger = (rows.of(model, metric) for metric in METRICS)
        found.append({"name": name, "bytes": nbytes, "kl": fmean(kl), "grown": math.expm1(fmean(larger))})
    return found
