"""The micro-world: people, what is said about them in a passage, and questions about a passage.

Every passage draws its facts at random, so a question can only be answered by reading. Training and held-out
passages are told apart by a hash of their text: a passage is held out or not whatever seed drew it, and the
two can never overlap.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


NAMES = words(
    "Anna Ben Carl Dora Emma Fred Gina Hugo Iris Jack Kate Leo Mary Nora Otto Paul Rosa Sam Tina Vera Will "
    "Zoe Adam Bella Clara David Elsa Felix Grace Henry Ida Jonas"
)
TOWNS = words(
    "Arven Belmor Corfe Denby Elmsay Farrow Gilden Harrow Istra Jarvo Kelda Lorne Marlow Norby Ostrel Pendle "
    "Quarn Roswick Selby Tolva Ulmere Varno Wexley Yarrow"
)
JOBS = words("baker doctor farmer teacher painter sailor weaver miller potter singer tailor guard")
PETS = words("cat dog goat horse rabbit parrot hen duck sheep pony")
FOODS = words("bread cheese soup honey plums rice fish cake beans apples")
INSTRUMENTS = words("flute drum harp violin piano guitar horn bell")
PLACES = words("market harbour mill bridge school church garden station library forest")
COLOURS = words("red blue green yellow black white brown grey pink purple")
OBJECTS = words("hat bag lamp key book coat cup rope ring map box kite")
FILLERS = (
    "The day is warm.",
    "It is early in the morning.",
    "The wind is cold.",
    "Nobody is in a hurry.",
    "The rain has stopped.",
    "This is an old story.",
)
TITLES = ("People of the valley", "Morning notes", "The village book", "Friends and neighbours")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One kind of fact about a person, and how it is said and asked; `{name}` and `{value}` are filled in."""

    key: str
    values: tuple[str, ...]
    statements: tuple[str, ...]
    noun: str
    ask: str
    check: str


RELATIONS = (
    Relation(
        key="lives",
        values=TOWNS,
        statements=("{name} lives in {value}.", "{name} has a house in {value}."),
        noun="home",
        ask="Where is the home of {name}?",
        check="is the home of {name} {value}",
    ),
    Relation(
        key="works",
        values=JOBS,
        statements=("{name} works as a {value}.", "{name} is a {value}."),
        noun="job",
        ask="What is the job of {name}?",
        check="is the job of {name} {value}",
    ),
    Relation(
        key="keeps",
        values=PETS,
        statements=("{name} keeps a {value}.", "{name} looks after a {value}."),
        noun="animal",
        ask="What is the animal of {name}?",
        check="is the animal of {name} {value}",
    ),
    Relation(
        key="likes",
        values=FOODS,
        statements=("{name} likes to eat {value}.", "{name} is fond of {value}."),
        noun="food",
        ask="What is the food of {name}?",
        check="is the food of {name} {value}",
    ),
    Relation(
        key="plays",
        values=INSTRUMENTS,
        statements=("{name} plays the {value}.", "{name} is learning the {value}."),
        noun="instrument",
        ask="What is the instrument of {name}?",
        check="is the instrument of {name} {value}",
    ),
    Relation(
        key="waits",
        values=PLACES,
        statements=("{name} waits at the {value}.", "{name} is standing near the {value}."),
        noun="place",
        ask="Where is the place of {name}?",
        check="is the place of {name} {value}",
    ),
    Relation(
        key="carries",
        values=tuple(f"{colour} {thing}" for colour in COLOURS for thing in OBJECTS),
        statements=("{name} carries a {value}.", "{name} has found a {value}."),
        noun="thing",
        ask="What is in the hand of {name}?",
        check="is in the hand of {name} {value}",
    ),
)
WORLD_WORDS = NAMES + TOWNS + JOBS + PETS + FOODS + INSTRUMENTS + PLACES + COLOURS + OBJECTS


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A person's value for one relation."""

    name: str
    relation: Relation
    value: str


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Facts in the order they are told, and their text."""

    facts: tuple[Fact, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """A yes/no question: lower case but for names, without a question mark, as in BoolQ; it ends in `value`."""

    question: str
    value: str
    label: bool


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question whose answer is a span of the passage."""

    question: str
    answer: str


def is_held_out(text: str) -> bool:
    """Whether a generated text belongs to the held-out eighth of all texts."""
    return zlib.crc32(text.encode()) % 8 == 0


def draw_facts(random: Random, count: int) -> tuple[Fact, ...]:
    """Draw `count` facts that share few names and relations; no value occurs twice within a relation."""
    relation_count = random.randint(1, min(3, count))
    name_count = max(-(-count // relation_count), min(2, count))
    names, relations = random.sample(NAMES, name_count), random.sample(RELATIONS, relation_count)
    pairs = random.sample([(name, relation) for name in names for relation in relations], count)
    values = {relation.key: random.sample(relation.values, name_count) for relation in relations}
    return tuple(Fact(name=n, relation=r, value=values[r.key].pop()) for n, r in pairs)


def draw_passage(random: Random, count: int, *, held_out: bool) -> Passage:
    """Draw a passage of `count` facts, sometimes with a sentence that says nothing about anybody."""
    while True:
        facts = draw_facts(random, count)
        sentences = [random.choice(f.relation.statements).format(name=f.name, value=f.value) for f in facts]
        if random.random() < 0.3:
            sentences.insert(random.randint(0, count), random.choice(FILLERS))
        text = " ".join(sentences)
        if is_held_out(text) == held_out:
            return Passage(facts=facts, text=text)


def draw_check(random: Random, passage: Passage) -> Check:
    """Draw a yes/no question: half are true; most false ones use another person's value from the passage."""
    fact = random.choice(passage.facts)
    label = random.random() < 0.5
    value = fact.value if label else _wrong_value(random, passage, fact)
    question = fact.relation.check.format(name=fact.name, value=value)
    return Check(question=question, value=value, label=label)


def _wrong_value(random: Random, passage: Passage, fact: Fact) -> str:
    rivals = [f.value for f in passage.facts if f.relation.key == fact.relation.key and f.name != fact.name]
    if rivals and random.random() < 0.8:
        return random.choice(rivals)
    told = {f.value for f in passage.facts if f.relation.key == fact.relation.key}
    return random.choice([value for value in fact.relation.values if value not in told])


def draw_ask(random: Random, passage: Passage) -> Ask:
    """Draw a question for the value of one of the facts."""
    fact = random.choice(passage.facts)
    return Ask(question=fact.relation.ask.format(name=fact.name), answer=fact.value)


def draw_passages(seed: int, *, held_out: bool, fewest: int, most: int) -> Iterator[tuple[Random, Passage]]:
    """Yield passages without end, each with the source of randomness to draw its questions from."""
    random = Random(seed)
    while True:
        yield random, draw_passage(random, random.randint(fewest, most), held_out=held_out)
