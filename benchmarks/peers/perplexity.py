"""The one evaluator of a comparison: ``PYTHON perplexity.py SPEC.json``.

Every checkpoint, goldstick's too, is loaded by plain transformers (with compressed-tensors as its reader), in float32,
and sees the same held-out windows. Nothing of goldstick is imported. Three figures: perplexity, the mean
Kullback-Leibler divergence in nats from the float model's next-token distribution, and how often both think the same
token most likely.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM


def main() -> None:
    """Evaluate ``checkpoints`` (name → directory) against ``model``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    windows = load_file(spec["windows"])["held_out"]
    reference = load(spec["model"])
    result = {"float": evaluate(reference, reference, windows)}
    for name, directory in spec["checkpoints"].items():
        result[name] = evaluate(load(directory), reference, windows)
    Path(spec["result"]).write_text(json.dumps(result))


def load(directory: str) -> Any:
    """The model as plain transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.inference_mode()
def evaluate(model: Any, reference: Any, windows: Tensor) -> dict[str, float]:
    """Sums over all positions but the first of each window, in float64."""
    loss = divergence = agreement = 0.0
    for row in windows.split(1):
        found, wanted = (log_probabilities(other, row) for other in (model, reference))
        loss -= float(found.gather(1, row[0, 1:, None]).sum())
        divergence += float((wanted.exp() * (wanted - found)).sum())
        agreement += float((found.argmax(1) == wanted.argmax(1)).sum())
    count = windows.shape[0] * (windows.shape[1] - 1)
    perplexity = float(torch.tensor(loss / count).exp())
    return {"perplexity": perplexity, "divergence": divergence / count, "agreement": agreement / count}


def log_probabilities(model: Any, row: Tensor) -> Tensor:
    """float64 [tokens - 1, vocabulary]."""
    logits = model(input_ids=row, attention_mask=torch.ones_like(row)).logits
    return logits[0, :-1].double().log_softmax(-1)


if __name__ == "__main__":
    main()
