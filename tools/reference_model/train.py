"""Train the reference model: `python -m tools.reference_model.train --out DIR --minutes M [--resume]`.

Writes the tokenizer, `log.jsonl`, `checkpoint.pt` (all that is needed to go on) and, every few minutes and
at the end, the model itself in `DIR/model`. The learning rate follows the share of the time (or of the steps)
that is used up: a short rise, a plateau, and a straight fall to zero over the last part.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.reference_model.data import Row, collate, wikitext_tokens
from tools.reference_model.mixture import Curriculum, Mixture
from tools.reference_model.model import VOCABULARY, build, weighted_loss
from tools.reference_model.muon import Muon
from tools.reference_model.tokenizer import train_tokenizer

_RISE = 0.01
_FALL = 0.5
_TEXT_SHARE = 0.5
_SAVE_EVERY = 240.0
_LOG_EVERY = 50


def rate(progress: float) -> float:
    """The share of the peak learning rate at a share of the training."""
    return min(1.0, progress / _RISE + 0.02, (1 - progress) / _FALL)


class Training:
    """A model in training with everything that a checkpoint holds."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.minutes: float | None = arguments.minutes
        self.steps: int | None = arguments.steps
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = _tokenizer(self.out)
        self.model: LlamaForCausalLM = build(self.tokenizer.eos_token_id, arguments.seed)
        torch.nn.Module.to(self.model, self.device)
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=arguments.matrix_rate, weight_decay=0.05),
            torch.optim.AdamW(others, lr=arguments.rate, betas=(0.9, 0.97), weight_decay=0.0),
        ]
        self.peaks = (arguments.matrix_rate, arguments.rate)
        self.random, self.curriculum = Random(arguments.seed), Curriculum()
        self.step, self.tokens, self.elapsed = 0, 0, 0.0
        if arguments.resume:
            self._load()
        stream = _wikitext(self.tokenizer, self.out)
        self.mixture = Mixture(self.tokenizer, stream, self.random, self.curriculum)

    def progress(self) -> float:
        """The share of the training that is done."""
        if self.steps is not None:
            return self.step / self.steps
        assert self.minutes is not None
        return self.elapsed / (60 * self.minutes)

    def run(self) -> None:
        """Train to the end, or until asked to terminate; either way a checkpoint is left."""
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        sums: dict[str, float] = {}
        last = saved = time.monotonic()
        while self.progress() < 1 and not asked:
            for name, value in self._step().items():
                sums[name] = sums.get(name, 0.0) + value
            now = time.monotonic()
            self.elapsed, last = self.elapsed + now - last, now
            if self.step % _LOG_EVERY == 0:
                self._log({name: value / _LOG_EVERY for name, value in sums.items()})
                sums.clear()
            if now - saved > _SAVE_EVERY:
                self.save()
                saved = now
        self.save()

    def _step(self) -> dict[str, float]:
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * max(1e-3, rate(self.progress()))
        rows = self.mixture.skill_rows()
        skill_loss = self._learn(rows)
        text = self.mixture.text_batch().to(self.device)
        text_loss, _ = weighted_loss(self.model, text)
        torch.autograd.backward(_TEXT_SHARE * text_loss)
        self.tokens += text.tokens.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {"skill_loss": skill_loss, "text_loss": text_loss.item()}

    def _learn(self, groups: dict[str, list[Row]]) -> float:
        """Gradients of the answers; rows of like length go together, so that little is padding."""
        tagged = [(skill, row) for skill, group in groups.items() for row in group]
        tagged.sort(key=lambda pair: len(pair[1].tokens))
        total = sum(sum(row.weights[1:]) for _, row in tagged)
        right: dict[str, list[torch.Tensor]] = {skill: [] for skill in groups}
        loss_sum = 0.0
        half = len(tagged) // 2
        for part in (tagged[:half], tagged[half:]):
            batch = collate([row for _, row in part]).to(self.device)
            loss, guesses = weighted_loss(self.model, batch)
            share = float(batch.weights.sum()) / total
            torch.autograd.backward(share * loss)
            loss_sum += share * loss.item()
            for (skill, row), guess in zip(part, guesses, strict=True):
                right[skill].append(guess[guess >= 0])
                self.tokens += len(row.tokens)
        for skill, found in right.items():
            if sum(len(one) for one in found):
                self.curriculum.observe(skill, torch.cat(found).float().mean().item())
        return loss_sum

    def _log(self, figures: dict[str, float]) -> None:
        entry: dict[str, Any] = {"step": self.step, "tokens": self.tokens, "seconds": round(self.elapsed)}
        entry |= {name: round(value, 4) for name, value in figures.items()} | self.curriculum.state()
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def save(self) -> None:
        """Write the checkpoint under a temporary name, rename it, and write the model for others to load."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "random": self.random.getstate(),
            "curriculum": self.curriculum.state(),
            "counts": (self.step, self.tokens, self.elapsed),
        }
        temporary = self.out / "checkpoint.pt.part"
        torch.save(state, temporary)
        os.replace(temporary, self.out / "checkpoint.pt")
        self.model.save_pretrained(self.out / "model")
        self.tokenizer.save_pretrained(self.out / "model")
        record = {"steps": self.step, "tokens": self.tokens, "minutes": round(self.elapsed / 60, 1)}
        (self.out / "model" / "training.json").write_text(json.dumps(record) + "\n", encoding="utf-8")

    def _load(self) -> None:
        state = torch.load(self.out / "checkpoint.pt", map_location=self.device, weights_only=False)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.random.setstate(state["random"])
        self.curriculum = Curriculum(**state["curriculum"])
        self.step, self.tokens, self.elapsed = state["counts"]


def _tokenizer(out: Path) -> PreTrainedTokenizerFast:
    folder = out / "tokenizer"
    if (folder / "tokenizer.json").exists():
        loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
        return loaded
    folder.mkdir(parents=True, exist_ok=True)
    return train_tokenizer(VOCABULARY, folder)


def _wikitext(tokenizer: PreTrainedTokenizerFast, out: Path) -> Any:
    cache = out / "wikitext.npy"
    if not cache.exists():
        np.save(cache, wikitext_tokens(tokenizer))
    return np.load(cache)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="time to train, resumed runs included")
    parser.add_argument("--steps", type=int, help="steps to train, instead of a time")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matrix-rate", type=float, default=0.004, help="peak learning rate of Muon")
    parser.add_argument("--rate", type=float, default=8e-4, help="peak learning rate of AdamW")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if (arguments.minutes is None) == (arguments.steps is None):
        parser.error("give one of --minutes and --steps")
    torch.set_num_threads(arguments.threads)
    Training(arguments).run()


if __name__ == "__main__":
    main()
