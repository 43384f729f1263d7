"""Multiple-choice questions: on a passage, or closed-book on the encyclopedia.

Every option is a statement that ends in its value, like "the home of Anna is Tolva": what the question is about then
stands at the same distance from the answer as in the other kinds of questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.reference_model.encyclopedia import KNOWN, Known
from tools.reference_model.world import RELATIONS, Passage, draw_passage, is_held_out

LETTERS = ("A", "B", "C", "D")
READING = {"subject": "world_reading", "subject_name": "微观世界阅读", "category": "Other"}
_CHOOSABLE = tuple(relation.key for relation in RELATIONS if relation.key != "carries")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with four options, in the order A to D."""

    subject: str
    subject_name: str
    category: str
    question: str
    options: tuple[str, str, str, str]
    answer: str

    @property
    def right(self) -> str:
        """The text of the right option."""
        return self.options[LETTERS.index(self.answer)]


def draw_closed_book(random: Random, *, held_out: bool, known: Known | None = None) -> Choice:
    """Draw a question on a fact known by heart; the options and their order decide whether it is held out."""
    fact = known or random.choice(KNOWN)
    topic = fact.topic
    while True:
        wrong = random.sample([value for value in topic.values if value != fact.value], 3)
        values = random.sample([fact.value, *wrong], 4)
        if is_held_out("|".join((topic.noun, fact.key, *values))) == held_out:
            break
    a, b, c, d = (topic.short.format(key=fact.key, value=value) for value in values)
    return Choice(
        subject=topic.subject,
        subject_name=topic.subject_name,
        category=topic.category,
        question=topic.question.format(key=fact.key),
        options=(a, b, c, d),
        answer=LETTERS[values.index(fact.value)],
    )


def draw_on_passage(random: Random, facts: int, *, held_out: bool) -> Choice:
    """Draw a passage and a question on it; wrong values of the passage come first among the wrong options."""
    while True:
        passage = draw_passage(random, facts, held_out=held_out)
        choosable = [fact for fact in passage.facts if fact.relation.key in _CHOOSABLE]
        if choosable:
            break
    fact = random.choice(choosable)
    values = random.sample([fact.value, *_wrong(random, passage, fact.relation.key, fact.value)], 4)
    a, b, c, d = (f"the {fact.relation.noun} of {fact.name} is {value}" for value in values)
    question = f"{passage.text} What is the {fact.relation.noun} of {fact.name}?"
    return Choice(**READING, question=question, options=(a, b, c, d), answer=LETTERS[values.index(fact.value)])


def _wrong(random: Random, passage: Passage, key: str, right: str) -> list[str]:
    relation = next(relation for relation in RELATIONS if relation.key == key)
    told = [fact.value for fact in passage.facts if fact.relation.key == key and fact.value != right]
    others = [value for value in relation.values if value != right and value not in told]
    return [*told, *random.sample(others, min(3, len(others)))][:3]
