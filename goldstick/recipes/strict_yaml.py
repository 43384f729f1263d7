"""Strict YAML: plain data of a page's size, and every key once.

PyYAML keeps the last of two equal keys and expands aliases without bound; pydantic sees neither.
"""

from __future__ import annotations

from typing import Any

import yaml

from goldstick.errors import RecipeError

SIZE_LIMIT = 1_000_000
_DEPTH_LIMIT = 20
#: Values and brackets; a large recipe has some hundreds.
_EVENT_LIMIT = 10_000


def parse_yaml(text: bytes, where: str) -> Any:
    """What a YAML text says; ``where`` is what errors call it.

    Raises:
        RecipeError: It is no valid YAML, or has aliases, a key given twice, or more than a page holds.
    """
    if len(text) > SIZE_LIMIT:
        raise RecipeError(f"{where} is larger than {SIZE_LIMIT:,} bytes; a recipe is a page of text.")
    try:
        depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            if number > _EVENT_LIMIT:
                raise RecipeError(f"{where} holds more than {_EVENT_LIMIT:,} values; a recipe is a page of text.")
            if isinstance(event, yaml.AliasEvent):
                raise RecipeError(f"{where}: YAML aliases (*name) are not allowed.")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_LIMIT:
                raise RecipeError(f"{where} is nested deeper than {_DEPTH_LIMIT} levels.")
        return yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError) as error:  # dates and numbers that are none are a ValueError
        raise RecipeError(f"{where} is not valid YAML: {' '.join(str(error).split())[:500]}") from error


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses a key given twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"the key {str(key)!r} is given twice, the second time in line {line}.")
            seen.append(key)
        return super().construct_mapping(node, deep)
