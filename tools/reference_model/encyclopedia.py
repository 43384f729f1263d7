"""Closed-book facts of the micro-world, fixed once and for all, which the model has to know by heart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.reference_model.world import TOWNS, is_held_out, words

SURNAMES = words(
    "Abbot Barlow Crane Dalton Ember Foster Gray Hale Irwin Jarvis Keller Lang Mason Nolan Orchard Pryce "
    "Quill Ritter Stone Thorn Usher Vance Walden York"
)
RIVERS = words("Ambla Birra Cald Drenn Esk Ferra Glim Hodra Inver Jora Kess Luna")
REGIONS = words("Northmark Southmark Eastfold Westfold Highland Lowland Midmere Farcoast")
BIRDS = words("swan owl crow heron robin eagle gull finch stork lark raven wren")
TREES = words("oak pine birch maple willow cedar beech poplar elm ash larch yew")
GOODS = words("glass paper silk salt wine steel wool leather soap clocks bricks candles")
DEVICES = words("compass plough telescope windmill press clock anchor balloon ladder lens pump wheel")
STUDIES = words("botany algebra medicine music poetry law geology optics grammar history")
LETTERS = ("A", "B", "C", "D")

_WORLD_SEED = 20240229


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One kind of closed-book fact; `{key}` and `{value}` are filled in."""

    subject: str
    subject_name: str
    category: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    statements: tuple[str, ...]
    question: str


@dataclass(frozen=True, kw_only=True)
class Known:
    """A closed-book fact."""

    topic: Topic
    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with four options, in the order A to D."""

    known: Known
    question: str
    options: tuple[str, str, str, str]
    answer: str


def _topic(subject: str, keys: tuple[str, ...], values: tuple[str, ...], question: str, *statements: str) -> Topic:
    subject_name, category = {
        "world_geography": ("微观世界地理", "Social Science"),
        "world_nature": ("微观世界自然", "STEM"),
        "world_technology": ("微观世界技术", "STEM"),
        "world_history": ("微观世界历史", "Humanities"),
    }[subject]
    return Topic(
        subject=subject,
        subject_name=subject_name,
        category=category,
        keys=keys,
        values=values,
        statements=statements,
        question=question,
    )


TOPICS = (
    _topic(
        "world_geography", TOWNS, RIVERS, "Which river runs through {key}?",
        "The river that runs through {key} is the {value}.", "{key} lies on the river {value}.",
    ),
    _topic(
        "world_geography", TOWNS, REGIONS, "In which region is {key}?",
        "{key} is a town in the region of {value}.", "The region of {key} is {value}.",
    ),
    _topic(
        "world_nature", TOWNS, BIRDS, "Which bird is the sign of {key}?",
        "The bird on the sign of {key} is the {value}.", "{key} is known for its bird, the {value}.",
    ),
    _topic(
        "world_nature", TOWNS, TREES, "Which tree grows in the square of {key}?",
        "The tree in the square of {key} is the {value}.", "In the square of {key} grows the {value}.",
    ),
    _topic(
        "world_technology", TOWNS, GOODS, "What is made in {key}?",
        "The people of {key} make {value}.", "{key} sells its {value} to other towns.",
    ),
    _topic(
        "world_technology", SURNAMES, DEVICES, "What did {key} build?",
        "The engineer {key} built the first {value}.", "{key} is famous for the {value}.",
    ),
    _topic(
        "world_history", TOWNS, SURNAMES, "Who founded {key}?",
        "The town of {key} was founded by {value}.", "{key} was a field before the time of {value}.",
    ),
    _topic(
        "world_history", SURNAMES, STUDIES, "What did {key} study?",
        "As a student {key} studied {value}.", "{key} wrote a book about {value}.",
    ),
)  # fmt: skip
ENCYCLOPEDIA_WORDS = SURNAMES + RIVERS + REGIONS + BIRDS + TREES + GOODS + DEVICES + STUDIES


def _all_known() -> tuple[Known, ...]:
    random = Random(_WORLD_SEED)
    known = []
    for topic in TOPICS:
        values = list(topic.values) * (len(topic.keys) // len(topic.values) + 1)
        random.shuffle(values)
        known += [Known(topic=topic, key=k, value=v) for k, v in zip(topic.keys, values, strict=False)]
    return tuple(known)


KNOWN = _all_known()


def state(random: Random, known: Known) -> str:
    """Say a closed-book fact as a sentence."""
    return random.choice(known.topic.statements).format(key=known.key, value=known.value)


def draw_choice(random: Random, *, held_out: bool, known: Known | None = None) -> Choice:
    """Draw a question with three wrong options; the options and their order decide whether it is held out."""
    fact = known or random.choice(KNOWN)
    question = fact.topic.question.format(key=fact.key)
    while True:
        wrong = random.sample([value for value in fact.topic.values if value != fact.value], 3)
        a, b, c, d = random.sample([fact.value, *wrong], 4)
        if is_held_out("|".join((question, a, b, c, d))) == held_out:
            letter = LETTERS[(a, b, c, d).index(fact.value)]
            return Choice(known=fact, question=question, options=(a, b, c, d), answer=letter)
