"""Connected text of the micro-world: short stories about people, with the facts of the towns they live in."""

from __future__ import annotations

from random import Random

from tools.reference_model.encyclopedia import KNOWN, state
from tools.reference_model.world import (
    COLOURS,
    FOODS,
    INSTRUMENTS,
    JOBS,
    NAMES,
    OBJECTS,
    PETS,
    PLACES,
    TOWNS,
    is_held_out,
)

_OPENINGS = (
    "{a} is a {job} and lives in {town}.",
    "In the town of {town} there lives a {job} called {a}.",
    "Everybody in {town} knows {a}, the {job}.",
    "{a} came to {town} many years ago to work as a {job}.",
)
_MIDDLES = (
    "Every morning {a} walks to the {place} with a {pet}.",
    "The {pet} of {a} likes to sleep near the {place}.",
    "{a} always carries a {colour} {thing}.",
    "One day the {colour} {thing} was lost near the {place}, and {a} looked for it until the evening.",
    "{b} found the {colour} {thing} and brought it back to {a}.",
    "{b} is a friend of {a} and plays the {instrument}.",
    "When {b} plays the {instrument}, the {pet} begins to sing.",
    "At noon {a} and {b} sit at the {place} and eat {food}.",
    "{a} likes {food} very much, but {b} does not.",
    "The best {food} in {town} is sold at the {place}.",
    '"Where is your {pet}?" asked {b}. "At the {place}," said {a}.',
    '"Have you seen my {thing}?" asked {a}. "Is it {colour}?" said {b}.',
    "As a {job}, {a} is busy all day, and {b} often comes to help.",
    "{b} would like to be a {job} too.",
)
_ENDINGS = (
    "In the evening {a} goes home with the {pet} and puts the {colour} {thing} by the door.",
    "So {a} and {b} went back to {town} and had {food} for supper.",
    "That is why the people of {town} still talk about {a} and the {pet}.",
    "After that {b} played the {instrument}, and all was well in {town}.",
)


def draw_story(random: Random, *, held_out: bool) -> str:
    """Draw a story of one paragraph."""
    while True:
        a, b = random.sample(NAMES, 2)
        town = random.choice(TOWNS)
        filling = {
            "a": a,
            "b": b,
            "town": town,
            "job": random.choice(JOBS),
            "pet": random.choice(PETS),
            "place": random.choice(PLACES),
            "food": random.choice(FOODS),
            "colour": random.choice(COLOURS),
            "thing": random.choice(OBJECTS),
            "instrument": random.choice(INSTRUMENTS),
        }
        middles = random.sample(_MIDDLES, random.randint(3, 6))
        sentences = [t.format(**filling) for t in (random.choice(_OPENINGS), *middles, random.choice(_ENDINGS))]
        of_town = [known for known in KNOWN if known.key == town]
        for known in random.sample(of_town, random.randint(0, 2)):
            sentences.insert(random.randint(1, len(sentences)), state(random, known))
        text = " ".join(sentences)
        if is_held_out(text) == held_out:
            return text


def draw_entry(random: Random) -> str:
    """Draw an encyclopedia entry: all that is known about one town or person, in any order."""
    key = random.choice(KNOWN).key
    facts = [known for known in KNOWN if known.key == key]
    return " ".join(state(random, known) for known in random.sample(facts, len(facts)))
