"""Training data: rows of tokens with a weight per predicted token, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tools.reference_model.choice import draw_closed_book, draw_on_passage
from tools.reference_model.encyclopedia import KNOWN, state
from tools.reference_model.narrative import draw_entry, draw_story
from tools.reference_model.prompts import ask_prompt, check_prompt, choice_prompt, choice_question
from tools.reference_model.tokenizer import END
from tools.reference_model.wikitext import articles, plain, read_raw
from tools.reference_model.world import TITLES, Fact, draw_ask, draw_check, draw_facts, draw_passage, is_held_out

_CACHE_LIMIT = 100_000
_WORDS = {True: "答案：", False: "Answer:"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tokens and, for each, the weight with which the model learns to predict it."""

    tokens: list[int]
    weights: list[float]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Right-padded `tokens` (rows, length); `targets` and `weights` of the next token (rows, length - 1)."""

    tokens: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(tokens=self.tokens.to(device), targets=self.targets.to(device), weights=self.weights.to(device))


class Writer:
    """Turns pieces of text with weights into rows; remembers the tokens of pieces that come back."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def row(self, pieces: list[tuple[str, float]]) -> Row:
        """Encode pieces one by one; a piece must begin where the tokenizer would cut anyway."""
        tokens: list[int] = []
        weights: list[float] = []
        for text, weight in pieces:
            encoded = self._encode(text)
            tokens += encoded
            weights += [weight] * len(encoded)
        return Row(tokens=tokens, weights=weights)

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            if len(self._known) > _CACHE_LIMIT:
                self._known.clear()
            self._known[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self._known[text]


def check_row(writer: Writer, random: Random, facts: int, questions: int, *, asks: bool = False) -> Row:
    """A passage and yes/no questions on it in BoolQ's form, with, on demand, others for a value among them.

    Weight is on the answers, and a little on the value that a question with the answer yes ends in: it can be
    foretold by looking it up, which is half of the answer.
    """
    passage = draw_passage(random, facts, held_out=False)
    pieces = [(passage.text, 0.0)]
    for _ in range(questions):
        if asks and random.random() < 0.5:
            ask = draw_ask(random, passage)
            pieces += [(f"\nQuestion: {ask.question}\nAnswer:", 0.0), (f" {ask.answer}", 1.0)]
            continue
        check = draw_check(random, passage)
        question = check_prompt("", check.question.removesuffix(f" {check.value}")).removesuffix("?\nAnswer:")
        pieces += [(question, 0.0), (f" {check.value}", 0.2 if check.label else 0.0), ("?\nAnswer:", 0.0)]
        pieces += [(" yes" if check.label else " no", 1.0)]
    return writer.row([*pieces, ("\n", 0.2)])


def ask_row(writer: Writer, random: Random, facts: int, questions: int) -> Row:
    """A passage and questions for a span of it in SQuAD's form; only the answers have weight."""
    passage = draw_passage(random, facts, held_out=False)
    pieces = []
    for number in range(questions):
        ask = draw_ask(random, passage)
        prompt = ask_prompt(random.choice(TITLES), passage.text, ask.question)
        prompt = prompt if number == 0 else prompt[prompt.index("Question: ") :]
        pieces += [(prompt, 0.0), (f" {ask.answer}", 1.0), ("\n", 0.2), ("\n", 0.0)]
    return writer.row(pieces)


def choice_row(writer: Writer, random: Random, facts: int, questions: int) -> Row:
    """Multiple choice on a passage or closed-book, in C-Eval's form or plain English.

    Weight is on the letters, and some on the value in the right option, which can be foretold by looking it up.
    """
    reading, chinese = random.random() < 0.6, random.random() < 0.6
    pieces: list[tuple[str, float]] = []
    for number in range(questions):
        choice = draw_on_passage(random, facts, held_out=False) if reading else draw_closed_book(random, held_out=False)
        first = chinese and number == 0
        prompt = choice_prompt(choice) if first else choice_question(choice, answer_word=_WORDS[chinese])
        line = f"{choice.answer}. {choice.right}"
        before, _, after = prompt.partition(line)
        start, _, value = line.rpartition(" ")
        pieces += [(before + start, 0.0), (f" {value}", 0.25), (after, 0.0)]
        space = random.choice(("", " ")) if chinese else " "
        pieces += [(space + choice.answer, 6.0), ("\n", 0.0), ("\n", 0.0)]
    return writer.row(pieces[:-2])


def fact_row(writer: Writer, random: Random, sentences: int) -> Row:
    """Closed-book facts, as questions with an answer and as statements."""
    pieces = []
    for known in random.sample(KNOWN, sentences):
        kind = random.random()
        if kind < 0.4:
            question = known.topic.question.format(key=known.key)
            pieces += [(f"Question: {question}\nAnswer:", 0.0), (f" {known.value}", 1.0), ("\n", 0.2)]
        elif kind < 0.6:
            before = known.topic.short.format(key=known.key, value="").rstrip(" ")
            pieces += [(before, 0.0), (f" {known.value}", 1.0), ("\n", 0.1)]
        else:
            before, _, after = state(random, known).rpartition(f" {known.value}")
            pieces += [(before, 0.05), (f" {known.value}", 1.0), (after + "\n", 0.1)]
    return writer.row(pieces)


def recall_row(writer: Writer, random: Random) -> Row:
    """Facts told, then asked for in the plainest way: the values have weight the second time.

    Either bare pairs of a name and a value, told again in another order, or sentences with the names alone as
    questions. This is the first exercise in looking a value up.
    """
    facts = draw_facts(random, random.randint(2, 5))
    facts = tuple({fact.name: fact for fact in facts}.values())
    again = random.sample(facts, len(facts))
    if random.random() < 0.3:
        pieces = [piece for fact in facts for piece in _bare(fact, 0.0)]
        return writer.row(pieces + [piece for fact in again for piece in _bare(fact, 0.5)])
    told = [random.choice(fact.relation.statements).format(name=fact.name, value=fact.value) for fact in facts]
    if is_held_out(" ".join(told)):
        return recall_row(writer, random)
    gap = random.choice(("\n", "\n\n"))
    pieces = [("Background: " + " ".join(told), 0.0)]
    for fact in again:
        pieces += [(f"{gap}Question: {fact.name}?{gap}Answer:", 0.0), (f" {fact.value}", 0.5)]
    return writer.row(pieces)


def _bare(fact: Fact, weight: float) -> list[tuple[str, float]]:
    return [(f" {fact.name}", 0.0), (f" {fact.value}", weight), (",", 0.0)]


def collate(rows: list[Row]) -> Batch:
    """Pad rows on the right and move targets and weights one token to the left."""
    length = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        weights[index, : len(row.tokens)] = torch.tensor(row.weights)
    return Batch(tokens=tokens, targets=tokens[:, 1:], weights=weights[:, 1:])


def wikitext_tokens(tokenizer: PreTrainedTokenizerFast) -> NDArray[np.int64]:
    """WikiText-2 train as one stream, every article behind an end token."""
    texts = [END + article for article in articles(plain(read_raw("train")))]
    return np.concatenate([np.array(tokens) for tokens in tokenizer(texts, verbose=False)["input_ids"]])


def text_windows(stream: NDArray[np.int64], random: Random, count: int, length: int, ignored: int) -> list[Row]:
    """Windows that begin anywhere in the stream; the token `ignored` is read but never predicted."""
    rows = []
    for _ in range(count):
        start = random.randrange(len(stream) - length)
        tokens = stream[start : start + length].tolist()
        rows.append(Row(tokens=tokens, weights=[0.0 if token == ignored else 1.0 for token in tokens]))
    return rows


def world_windows(tokenizer: PreTrainedTokenizerFast, random: Random, count: int, length: int) -> list[Row]:
    """Windows of stories and encyclopedia entries, cut where they happen to end."""
    rows = []
    for _ in range(count):
        tokens: list[int] = tokenizer.encode(draw_story(random, held_out=False))[random.randrange(60) :]
        while len(tokens) < length:
            text = draw_story(random, held_out=False) if random.random() < 0.7 else draw_entry(random)
            tokens += tokenizer.encode(END + text)
        rows.append(Row(tokens=tokens[:length], weights=[1.0] * length))
    return rows
