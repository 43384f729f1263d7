"""Closed-book facts of the micro-world, fixed once and for all, which the model has to know by heart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.reference_model.world import TOWNS, words

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

_WORLD_SEED = 20240229


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One kind of closed-book fact; `{key}` and `{value}` are filled in."""

    subject: str
    subject_name: str
    category: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    noun: str
    statements: tuple[str, ...]

    @property
    def short(self) -> str:
        """The shortest statement, without a full stop."""
        return f"the {self.noun} of {{key}} is {{value}}"

    @property
    def question(self) -> str:
        """The question for the value."""
        return f"What is the {self.noun} of {{key}}?"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A closed-book fact."""

    topic: Topic
    key: str
    value: str


def _topic(subject: str, keys: tuple[str, ...], values: tuple[str, ...], noun: str, *statements: str) -> Topic:
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
        noun=noun,
        statements=statements,
    )


TOPICS = (
    _topic(
        "world_geography", TOWNS, RIVERS, "river",
        "The river that runs through {key} is the {value}.", "{key} lies on the river {value}.",
    ),
    _topic(
        "world_geography", TOWNS, REGIONS, "region",
        "{key} is a town in the region of {value}.", "The region of {key} is {value}.",
    ),
    _topic(
        "world_nature", TOWNS, BIRDS, "bird",
        "The bird on the sign of {key} is the {value}.", "{key} is known for its bird, the {value}.",
    ),
    _topic(
        "world_nature", TOWNS, TREES, "tree",
        "The tree in the square of {key} is the {value}.", "In the square of {key} grows the {value}.",
    ),
    _topic(
        "world_technology", TOWNS, GOODS, "market",
        "The people of {key} make {value}.", "{key} sells its {value} to other towns.",
    ),
    _topic(
        "world_technology", SURNAMES, DEVICES, "work",
        "The engineer {key} built the first {value}.", "{key} is famous for the {value}.",
    ),
    _topic(
        "world_history", TOWNS, SURNAMES, "founder",
        "The town of {key} was founded by {value}.", "{key} was a field before the time of {value}.",
    ),
    _topic(
        "world_history", SURNAMES, STUDIES, "study",
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
