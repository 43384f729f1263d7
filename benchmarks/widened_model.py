"""A larger model that is worth something: the reference model three times as wide, and trained on for some steps.

    python -m benchmarks.widened_model FOLDER [--steps 150]

Every channel, head and neuron is there three times, after Net2Net (arXiv 1511.05641): what writes it is copied, and
what reads it has its weight divided at random over the three, so that the sum is what it was. That computes what the
reference model computes, with 26 million parameters and a head of its own. Training on further generated text then
makes copies differ. The text's seed is none of those that the bundled data were drawn with.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.find_model import reference_directory
from tools.reference_model.bundle import calibration_text

TIMES, TOKENS, ROWS, RATE, TEXT_SEED, TEXT_BYTES = 3, 128, 4, 2e-4, 4_242, 1_000_000
NOISE = 0.5  # of the divided weights, in parts of their own deviation


def widened(source: Path, seed: int = 0) -> Any:
    """The model of ``source``, ``TIMES`` as wide, float32."""
    generator = torch.Generator().manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    before = model.config
    config = copy.deepcopy(before)
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        setattr(config, name, TIMES * getattr(before, name))
    config.tie_word_embeddings = False
    wide: Any = LlamaForCausalLM(config)
    given = model.state_dict()
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            value = given["model.embed_tokens.weight" if name == "lm_head.weight" else name]
            if value.ndim == 1:
                found = value.repeat(TIMES)
            elif "embed_tokens" in name:
                found = value.repeat(1, TIMES)
            else:
                found = _divided(value, generator)
                found = found if name == "lm_head.weight" else found.repeat(TIMES, 1)
            parameter.copy_(found)
    return wide


def _divided(weight: Tensor, generator: torch.Generator) -> Tensor:
    """[out, in] as [out, TIMES · in], the sum over the copies of each input being what it was."""
    noise = torch.randn(TIMES, *weight.shape, generator=generator)
    parts = weight / TIMES + (noise - noise.mean(0)) * weight.std() * NOISE / TIMES
    return torch.cat(list(parts), dim=1)


def train(model: Any, tokenizer: Any, steps: int, seed: int = 0) -> list[float]:
    """Train on generated text; the losses of the steps."""
    ids = torch.tensor(tokenizer(calibration_text(TEXT_BYTES, TEXT_SEED))["input_ids"])
    rows = ids[: len(ids) // TOKENS * TOKENS].reshape(-1, TOKENS)
    random = Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.97), weight_decay=0.01)
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10, 2 * (steps - step) / steps)
        batch = rows[[random.randrange(len(rows)) for _ in range(ROWS)]]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
        if step % 10 == 9:
            print(f"step {step + 1}: {sum(losses[-10:]) / 10:.3f}", flush=True)
    return losses


def main() -> None:
    """Widen, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    source = reference_directory()
    began = time.perf_counter()
    model = widened(source)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters", flush=True)
    train(model, AutoTokenizer.from_pretrained(source), arguments.steps)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.folder)
    for file in source.glob("*token*"):
        shutil.copy(file, arguments.folder)
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
