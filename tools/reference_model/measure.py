"""Measure a reference folder: `python -m tools.reference_model.measure DIR --json FILE`.

DIR holds the model, its tokenizer and `data`. Measured are the model as it is, a randomly initialised one of
the same architecture, and the model with its linear layers rounded to 8, 4, 3 and 2 bits.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.reference_model.choice import READING
from tools.reference_model.prompts import CHOICE_HEADER, ask_prompt, check_prompt
from tools.reference_model.rounding import round_linears
from tools.reference_model.scoring import exact_match, f1
from tools.reference_model.wikitext import plain, read_raw

_BATCH = 32
_WINDOW = 512
_MOST_NEW_TOKENS = 6
_WIKITEXT_WINDOWS = 48


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Accuracies, F1 and exact match in percent; perplexities per token (`wikitext`: a part of valid)."""

    yes_no: float
    squad_f1: float
    squad_exact: float
    choice: float
    choice_spaced: float
    choice_passage: float
    choice_known: float
    heldout: float
    wikitext: float


@torch.inference_mode()
def last_logits(model: LlamaForCausalLM, sequences: list[list[int]]) -> torch.Tensor:
    """Logits behind the last token of each sequence (sequences, vocabulary)."""
    found: list[torch.Tensor] = []
    for first in range(0, len(sequences), _BATCH):
        part = sequences[first : first + _BATCH]
        length = max(map(len, part))
        tokens = torch.tensor([one + [0] * (length - len(one)) for one in part])
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        last = torch.tensor([len(one) - 1 for one in part])
        found.append(model.lm_head(hidden[torch.arange(len(part)), last]))
    return torch.cat(found)


def accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[tuple[str, str]],
    answers: list[str],
) -> float:
    """How often the answer (one token) that is likeliest behind a prompt is the right one, in percent."""
    ids = [tokenizer.encode(answer)[0] for answer in answers]
    logits = last_logits(model, [tokenizer.encode(prompt) for prompt, _ in rows])[:, ids]
    right: list[bool] = [
        answers[guess] == answer for guess, (_, answer) in zip(logits.argmax(-1).tolist(), rows, strict=True)
    ]
    return 100 * sum(right) / len(right)


def greedy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> list[str]:
    """The greedy continuation of each prompt, up to a newline."""
    sequences = [tokenizer.encode(prompt) for prompt in prompts]
    starts = [len(one) for one in sequences]
    going = list(range(len(prompts)))
    for _ in range(_MOST_NEW_TOKENS):
        guesses = last_logits(model, [sequences[index] for index in going]).argmax(-1).tolist()
        for index, guess in zip(going, guesses, strict=True):
            sequences[index].append(guess)
        going = [i for i, guess in zip(going, guesses, strict=True) if "\n" not in str(tokenizer.decode([guess]))]
        if not going:
            break
    texts = [str(tokenizer.decode(one[start:])) for one, start in zip(sequences, starts, strict=True)]
    return [text.split("\n")[0].strip() for text in texts]


@torch.inference_mode()
def negative_log_likelihood(model: LlamaForCausalLM, tokens: list[int]) -> tuple[float, int]:
    """Sum over all tokens but the first, in nats, in windows of 512 predictions; and their number."""
    total = 0.0
    for first in range(0, len(tokens) - 1, _WINDOW):
        window = torch.tensor([tokens[first : first + _WINDOW + 1]])
        logits = model(input_ids=window[:, :-1], use_cache=False).logits[0]
        total += functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
    return total, len(tokens) - 1


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, data: Path) -> Figures:
    """All figures of one model."""
    checks = [json.loads(line) for line in (data / "boolq" / "val.jsonl").read_text(encoding="utf-8").splitlines()]
    yes_no = [(check_prompt(r["passage"], r["question"]), " yes" if r["label"] else " no") for r in checks]
    asks = _squad_rows(data / "squad" / "dev-v1.1.json")
    guesses = greedy(model, tokenizer, [prompt for prompt, _ in asks])
    pairs = [(guess, references) for guess, (_, references) in zip(guesses, asks, strict=True)]
    lines = (data / "ceval" / "val.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    choices = [_ceval_row(row) for row in rows]
    on_passage = [pair for pair, row in zip(choices, rows, strict=True) if row["subject"] == READING["subject"]]
    known = [pair for pair, row in zip(choices, rows, strict=True) if row["subject"] != READING["subject"]]
    spaced = [(prompt, f" {letter}") for prompt, letter in choices]
    wikitext = tokenizer.encode(plain(read_raw("valid")), verbose=False)[: _WIKITEXT_WINDOWS * _WINDOW + 1]
    heldout = tokenizer.encode((data / "text" / "heldout.txt").read_text(encoding="utf-8"), verbose=False)
    return Figures(
        yes_no=accuracy(model, tokenizer, yes_no, [" yes", " no"]),
        squad_f1=100 * sum(f1(*pair) for pair in pairs) / len(pairs),
        squad_exact=100 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        choice=accuracy(model, tokenizer, choices, list("ABCD")),
        choice_spaced=accuracy(model, tokenizer, spaced, [f" {letter}" for letter in "ABCD"]),
        choice_passage=accuracy(model, tokenizer, on_passage, list("ABCD")),
        choice_known=accuracy(model, tokenizer, known, list("ABCD")),
        heldout=_perplexity(model, heldout),
        wikitext=_perplexity(model, wikitext),
    )


def wikitext_figures(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, split: str) -> dict[str, float]:
    """Perplexity per token and per word (as the file separates words) and bits per byte of a whole split."""
    raw = read_raw(split)
    text = plain(raw)
    total, count = negative_log_likelihood(model, tokenizer.encode(text, verbose=False))
    return {
        "per_token": math.exp(total / count),
        "per_word": math.exp(total / len(raw.split())),
        "bits_per_byte": total / math.log(2) / len(text.encode()),
    }


def measure_folder(folder: Path, *, whole_wikitext: bool = True) -> dict[str, Any]:
    """Figures by variant, and WikiText-2 valid and test in full for the model as it is."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    model = _load(folder)
    result: dict[str, Any] = {"as trained": asdict(measure(model, tokenizer, folder / "data"))}
    for bits in (8, 4, 3, 2):
        rounded = _load(folder)
        round_linears(rounded, bits)
        result[f"rounded to {bits} bits"] = asdict(measure(rounded, tokenizer, folder / "data"))
    torch.manual_seed(0)
    fresh = LlamaForCausalLM(model.config)
    fresh.train(False)
    result["random weights"] = asdict(measure(fresh, tokenizer, folder / "data"))
    whole = {s: wikitext_figures(model, tokenizer, s) for s in ("valid", "test")} if whole_wikitext else {}
    return {"variants": result, "wikitext2": whole}


def table(variants: dict[str, dict[str, float]]) -> str:
    """The figures as a Markdown table."""
    names = list(next(iter(variants.values())))
    lines = ["| model | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for variant, figures in variants.items():
        lines.append(f"| {variant} | " + " | ".join(f"{figures[name]:{_digits(name)}}" for name in names) + " |")
    return "\n".join(lines)


def _digits(name: str) -> str:
    return ".2f" if name in ("heldout", "wikitext") else ".1f"


def _perplexity(model: LlamaForCausalLM, tokens: list[int]) -> float:
    total, count = negative_log_likelihood(model, tokens)
    return math.exp(total / count)


def _load(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def _squad_rows(path: Path) -> list[tuple[str, list[str]]]:
    return [
        (
            ask_prompt(article["title"], paragraph["context"], question["question"]),
            [answer["text"] for answer in question["answers"]],
        )
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def _ceval_row(row: dict[str, str]) -> tuple[str, str]:
    options = "\n".join(f"{letter}. {row[letter]}" for letter in "ABCD")
    header = CHOICE_HEADER.format(subject_name=row["subject_name"])
    return f"{header}{row['question']}\n{options}\n答案：", row["answer"]


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--quick", action="store_true", help="without the whole of WikiText-2")
    arguments = parser.parse_args()
    figures = measure_folder(arguments.folder, whole_wikitext=not arguments.quick)
    print(table(figures["variants"]))
    print(json.dumps(figures["wikitext2"], indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
