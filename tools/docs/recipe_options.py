"""docs/reference/recipe-options.md: every word, scheme, stage and key of recipes, from the code that reads them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from goldstick.algorithms import ALGORITHMS
from goldstick.core.scheme import NUMBER_FORMATS
from goldstick.core.training import TrainingOptions
from goldstick.recipes.schema import recipe_schema
from goldstick.recipes.words import RECOMMENDED, SLOTS, grammar, vocabulary
from tools.docs.results import table

#: ``name: text`` of a Google-style section, with the lines that go on.
ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:func|class|data|meth):`~?\.?([^`]+)`")
#: What the schema says of a key by its shape alone.
UNSAID = {"stages": "what is done, in order: see below", "format": "compressed-tensors where it can hold the result"}
PARTS = ("Calibration", "Export", "Precision")


def plain(text: str) -> str:
    """A docstring's text as a cell of a table: one line, roles and double backticks as code."""
    text = ROLE.sub(r"`\1`", " ".join(text.split())).replace("``", "`")
    return text.replace("|", r"\|")


def described(kind: type) -> dict[str, str]:
    """What docstrings say of the fields of a dataclass, those it inherits among them."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        section = re.search(r"^(?:Attributes|Args):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        if section is not None:
            for names, words in ENTRY.findall(textwrap.dedent(section[1])):
                found |= {name: plain(words) for name in names.split(", ")}
    return found


def default(field: dataclasses.Field[Any]) -> str:
    """What a field is where nothing is said, as YAML has it; empty for a mapping of further options."""
    if field.default is dataclasses.MISSING:
        return ""
    return f"`{json.dumps(field.default)}`"


def options(kind: type, inherited: frozenset[str] = frozenset()) -> str:
    """A table of the fields of a dataclass but those that are told elsewhere."""
    said = described(kind)
    rows = [[f"`{one.name}`", default(one), said.get(one.name, "")]
            for one in dataclasses.fields(kind) if one.name not in inherited]  # fmt: skip
    return table(["option", "default", "what it does"], rows) if rows else "No options of its own."


SHARED = frozenset({"targets", "scheme", "overrides", "group_size_mismatch", "unrecognised", "tie", "training"})


def stages() -> Iterator[str]:
    """A section for each algorithm, in the order of the registry."""
    for name, kind in ALGORITHMS.items():
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        shared = [one.name for one in dataclasses.fields(kind) if one.name in SHARED]
        yield f"### {name}\n\n{plain(first)}"
        if shared:
            yield "Shared options: " + ", ".join(f"`{one}`" for one in shared) + "."
        yield options(kind, SHARED)


def keys(properties: Mapping[str, Any]) -> str:
    """A table of the keys of a mapping in the JSON schema."""
    rows = []
    for name, one in properties.items():
        value = f"`{json.dumps(one['default'])}`" if "default" in one and not isinstance(one["default"], dict) else ""
        choices = ", ".join(f"`{choice}`" for choice in one.get("enum", ()))
        said = plain(one.get("description", "")) or UNSAID.get(name, "")
        rows.append([f"`{name}`", value, "; ".join(filter(None, (said, choices)))])
    return table(["key", "default", "what it says"], rows)


def recipe_options() -> str:
    """The whole page below its heading."""
    schema = recipe_schema()
    words = vocabulary()
    shared = described(ALGORITHMS["rtn"]) | {"training": "A mapping: how long and how fast to train, see below."}
    lines = [
        "## Recipes to begin with",
        table(["recipe", "when to take it"], [[f"`{name}`", when] for name, when in RECOMMENDED.items()]),
        "## Words",
        f"The order of words in a recipe; what stands in brackets may be left out: `{grammar()}`",
        table(["place", "words"], [
            [slot, ", ".join(f"`{name}`" for name, word in words.items() if word.slot == slot) or "see below"]
            for slot in SLOTS]),
        "What each word does: [recipes](../recipes.md#words).",
        "## Schemes by name",
        "Beside `w4a16-g128` and its like, which are [put together](../recipes.md#words) from parts, and the "
        "[types and mixtures of GGUF files](../k-quants.md):",
        ", ".join(f"`{name}`" for name in NUMBER_FORMATS),
        "## Keys of a recipe file",
        keys(schema["properties"]),
        *(text for name in PARTS for text in (f"### {name.lower()}", keys(schema["$defs"][name]["properties"]))),
        "## Options that stages share",
        table(["option", "what it does"], [[f"`{name}`", shared.get(name, "")] for name in sorted(SHARED)]),
        "### training",
        plain(inspect.cleandoc(TrainingOptions.__doc__ or "").partition("\n\n")[0]),
        options(TrainingOptions),
        "## Stages",
        *stages(),
    ]  # fmt: skip
    return "\n\n".join(lines)
