"""What a model answers to a few items of each task, or makes of a few prompts, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldstick.errors import UsageError
from goldstick.evaluation.data import DataSource, evenly_spaced
from goldstick.evaluation.divergence import TextTask
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.protocol import Task
from goldstick.evaluation.span_model import SpanModel
from goldstick.evaluation.tasks.ceval import SubjectQuestion
from goldstick.evaluation.tasks.choice import Question, choose
from goldstick.evaluation.tasks.harness import HarnessTask
from goldstick.evaluation.tasks.images import Cifar10, ImageFolder
from goldstick.evaluation.tasks.question_file import OpenQuestion
from goldstick.evaluation.tasks.squad import ReadingQuestion

#: How many items of each task are shown where nobody says.
COUNT = 3
#: Tokens that are generated, and tokens of a text before them.
NEW_TOKENS, PROMPT_TOKENS = 40, 32
#: Characters of an item that are kept, from its end.
KEPT = 300


@dataclass(frozen=True, kw_only=True)
class Example:
    """An item and what a model answers.

    Attributes:
        task: The task that it is of; None of a prompt that was given.
        item: The end of what the model was given, or the name of an image.
        answer: What it generates, chooses or finds.
        expected: The right answer, where there is one.
    """

    task: str | None
    item: str
    answer: str
    expected: str | None = None


def examples(
    model: LanguageModel | SpanModel | ImageClassifier,
    tasks: Sequence[str | Task],
    data: DataSource,
    asked: int | Sequence[str] = COUNT,
    limit: int | None = None,
) -> list[Example]:
    """Answer a few items of each task, or go on from prompts, greedily: 40 tokens, or half of a shorter context.

    The items are evenly spaced over those that the task measures. Of running text a model is given the first 32 tokens
    of a document. Tasks of lm-evaluation-harness and tasks of one's own have no examples.

    Args:
        model: A model with what makes its inputs.
        tasks: Tasks or their names.
        data: Where their data are.
        asked: How many items of each task, or the prompts.
        limit: The most items that the tasks measure.

    Raises UsageError for prompts to a model that does not write, DataError for data that are missing.
    """
    if not isinstance(asked, int):
        if not isinstance(model, LanguageModel):
            raise UsageError(f"prompts are for models that write; this is {model.kind}")
        return _written(model, None, asked)
    found: list[Example] = []
    for task in find_tasks(tasks).values() if asked else ():
        found += _of_task(model, task, data, asked, limit)
    return found


def _of_task(
    model: LanguageModel | SpanModel | ImageClassifier, task: Task, data: DataSource, count: int, limit: int | None
) -> list[Example]:
    if isinstance(task, TextTask) and isinstance(model, LanguageModel):
        documents, _ = task.documents(model, data, limit)
        return _written(
            model, task.name, [model.decode(ids[:PROMPT_TOKENS]) for ids in evenly_spaced(documents, count)]
        )
    if isinstance(task, HarnessTask):
        return []
    rows: list[Any] = evenly_spaced(evenly_spaced(task.load(data), limit), count)
    if isinstance(model, ImageClassifier) and isinstance(task, Cifar10 | ImageFolder):
        return _seen(model, task, rows, data)
    if isinstance(model, LanguageModel) and rows and isinstance(rows[0], Question | SubjectQuestion):
        questions = [row if isinstance(row, Question) else row.question for row in rows]
        chosen = zip(questions, choose(model, questions, task.name, None), strict=True)
        return [_example(task, one.context, one.choices[own], one.choices[one.answer]) for one, own in chosen]
    if rows and isinstance(rows[0], ReadingQuestion | OpenQuestion):
        prompts = [row.prompt for row in rows]
        if isinstance(model, SpanModel):
            answers = model.answer([(str(row.question), str(row.context)) for row in rows])
            prompts = [str(row.question) for row in rows]
        elif isinstance(model, LanguageModel):
            answers = model.generate_greedy(prompts, _room(model), ["\n"])
        return [
            _example(task, prompt, answer, row.answers[0])
            for prompt, answer, row in zip(prompts, answers, rows, strict=True)
        ]
    return []


def _written(model: LanguageModel, task: str | None, prompts: Sequence[str]) -> list[Example]:
    texts = model.generate_greedy(prompts, _room(model))
    return [Example(task=task, item=_end(prompt), answer=text) for prompt, text in zip(prompts, texts, strict=True)]


def _seen(model: ImageClassifier, task: Cifar10 | ImageFolder, rows: Sequence[Any], data: DataSource) -> list[Example]:
    names = task.class_names(data)
    numbers = model.classes(names)
    known: Mapping[int, str] = dict(zip(numbers, names, strict=True))
    highest = model.scores([(row.where, row.read) for row in rows]).argmax(dim=1).tolist()
    return [
        _example(task, row.where, known.get(number, f"class {number}"), names[row.label])
        for row, number in zip(rows, highest, strict=True)
    ]


def _example(task: Task, item: str, answer: str, expected: str) -> Example:
    return Example(task=task.name, item=_end(item), answer=answer.strip(), expected=expected.strip())


def _room(model: LanguageModel) -> int:
    return min(NEW_TOKENS, max(1, model.context_length // 2))


def _end(text: str) -> str:
    return text if len(text) <= KEPT else f"…{text[-KEPT:]}"


def side_by_side(before: Sequence[Example], after: Sequence[Example]) -> list[dict[str, Any]]:
    """The two answers to each item: ``task``, ``item``, ``expected``, ``before``, ``after``."""
    return [
        {"task": one.task, "item": one.item, "expected": one.expected, "before": one.answer, "after": other.answer}
        for one, other in zip(before, after, strict=False)
        if (one.task, one.item) == (other.task, other.item)  # another tokenizer cuts a text elsewhere
    ]
