"""The JSON schema of recipes, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from goldstick.algorithms import ALGORITHMS
from goldstick.recipes.recipe import Recipe


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors: every algorithm with its options."""
    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    stages: list[dict[str, Any]] = [{"enum": list(ALGORITHMS)}]
    for name, algorithm in ALGORITHMS.items():
        options = TypeAdapter(algorithm).json_schema(ref_template="#/$defs/{model}")
        definitions.update(options.pop("$defs", {}))
        stage = {
            "type": "object",
            "properties": {name: options},
            "required": [name],
            "additionalProperties": False,
        }
        stages.append(stage)
    schema["properties"]["stages"] = {"type": "array", "minItems": 1, "items": {"anyOf": stages}}
    return schema
