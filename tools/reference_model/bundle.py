"""Writes the generated evaluation data, in the files and schemas that the tasks read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from tools.reference_model.choice import Choice, draw_closed_book, draw_on_passage
from tools.reference_model.encyclopedia import KNOWN
from tools.reference_model.narrative import draw_entry, draw_story
from tools.reference_model.prompts import ask_prompt, check_prompt, choice_question
from tools.reference_model.world import TITLES, draw_ask, draw_check, draw_passage, draw_passages

CHECKS = 600
ASK_PASSAGES = 160
READING_CHOICES = 120
SHOTS = 5
HELD_OUT_BYTES = 80_000
CALIBRATION_BYTES = 150_000
_SEEDS = {"boolq": 9001, "squad": 9002, "ceval": 9003, "heldout": 9004, "calibration": 9005}


def write_bundle(folder: Path) -> None:
    """Write `boolq`, `squad`, `ceval` and `text` below a folder; the same files every time."""
    _write_lines(folder / "boolq" / "val.jsonl", boolq_rows())
    _write(folder / "squad" / "dev-v1.1.json", json.dumps(squad(), ensure_ascii=False) + "\n")
    shots, rows = ceval_rows()
    _write_lines(folder / "ceval" / "dev.jsonl", shots)
    _write_lines(folder / "ceval" / "val.jsonl", rows)
    _write(folder / "text" / "heldout.txt", heldout_text())
    _write(folder / "text" / "calibration.txt", calibration_text())


def boolq_rows() -> list[dict[str, Any]]:
    """Yes/no questions on held-out passages of two to six facts, as many true as false, no passage twice."""
    rows: list[dict[str, Any]] = []
    wanted = {True: CHECKS // 2, False: CHECKS // 2}
    seen: set[str] = set()
    for random, passage in draw_passages(_SEEDS["boolq"], held_out=True, fewest=2, most=6):
        check = draw_check(random, passage)
        if passage.text in seen or not wanted[check.label]:
            continue
        seen.add(passage.text)
        wanted[check.label] -= 1
        rows.append({"question": check.question, "passage": passage.text, "idx": len(rows), "label": check.label})
        if len(rows) == CHECKS:
            break
    return rows


def squad() -> dict[str, Any]:
    """Held-out passages with two or three different questions each, in SQuAD 1.1's official form."""
    articles: dict[str, list[dict[str, Any]]] = {title: [] for title in TITLES}
    passages = draw_passages(_SEEDS["squad"], held_out=True, fewest=2, most=6)
    for number in range(ASK_PASSAGES):
        random, passage = next(passages)
        asks = {ask.question: ask for ask in (draw_ask(random, passage) for _ in range(3))}
        questions = [
            {
                "id": f"world-{number:03d}-{index}",
                "question": ask.question,
                "answers": [{"text": ask.answer, "answer_start": passage.text.index(f" {ask.answer}") + 1}],
            }
            for index, ask in enumerate(asks.values())
        ]
        articles[TITLES[number % len(TITLES)]].append({"context": passage.text, "qas": questions})
    data = [{"title": title, "paragraphs": paragraphs} for title, paragraphs in articles.items()]
    return {"version": "1.1", "data": data}


def ceval_rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Few-shot examples, five for each subject, and questions: on passages, and one on each closed-book fact."""
    random = Random(_SEEDS["ceval"])
    closed = sorted(KNOWN, key=lambda known: known.topic.subject)
    choices = [draw_closed_book(random, held_out=True, known=known) for known in closed]
    choices += [draw_on_passage(random, random.randint(2, 6), held_out=True) for _ in range(READING_CHOICES)]
    shots: list[Choice] = []
    for subject in sorted({choice.subject for choice in choices}):
        known = [fact for fact in KNOWN if fact.topic.subject == subject]
        while sum(shot.subject == subject for shot in shots) < SHOTS:
            if known:
                shot = draw_closed_book(random, held_out=True, known=random.choice(known))
            else:
                shot = draw_on_passage(random, 3, held_out=True)
            if shot not in choices:
                shots.append(shot)
    return _choice_rows(shots), _choice_rows(choices)


def heldout_text() -> str:
    """Held-out stories, one to a line."""
    random = Random(_SEEDS["heldout"])
    return _until(HELD_OUT_BYTES, (draw_story(random, held_out=True) for _ in range(10_000)), "\n")


def calibration_text(size: int = CALIBRATION_BYTES, seed: int = _SEEDS["calibration"]) -> str:
    """Training-side stories, entries and prompts with their answers: what the model meets when it is used."""
    random = Random(seed)
    return _until(size, iter(lambda: _calibration_piece(random), None), "\n\n")


def _calibration_piece(random: Random) -> str:
    kind = random.randrange(5)
    if kind == 0:
        return draw_story(random, held_out=False)
    if kind == 1:
        return draw_entry(random)
    if kind == 2:
        drawn = random.random() < 0.5
        choice = draw_closed_book(random, held_out=False) if drawn else draw_on_passage(random, 3, held_out=False)
        return f"{choice_question(choice, answer_word='Answer:')} {choice.answer}"
    passage = draw_passage(random, random.randint(2, 6), held_out=False)
    if kind == 3:
        check = draw_check(random, passage)
        return f"{check_prompt(passage.text, check.question)} {'yes' if check.label else 'no'}"
    ask = draw_ask(random, passage)
    return f"{ask_prompt(random.choice(TITLES), passage.text, ask.question)} {ask.answer}"


def _choice_rows(choices: list[Choice]) -> list[dict[str, str]]:
    rows = []
    for number, choice in enumerate(choices):
        a, b, c, d = choice.options
        row = {"subject": choice.subject, "subject_name": choice.subject_name, "category": choice.category}
        row |= {"id": str(number), "question": choice.question}
        rows.append(row | {"A": a, "B": b, "C": c, "D": d, "answer": choice.answer})
    return rows


def _until(size: int, pieces: Iterable[str], separator: str) -> str:
    chosen: list[str] = []
    written = 0
    for piece in pieces:
        chosen.append(piece)
        written += len(piece.encode()) + len(separator)
        if written >= size:
            break
    return separator.join(chosen) + "\n"


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    _write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
