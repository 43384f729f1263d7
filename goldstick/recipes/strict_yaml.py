"""YAML from a stranger: a page of plain data, without aliases, in which every key occurs once."""

from __future__ import annotations

from typing import Any

import yaml

SIZE_LIMIT = 300_000
_DEPTH_LIMIT = 20
#: Values and brackets; a large recipe has some hundreds.
_EVENT_LIMIT = 10_000


def parse_yaml(text: bytes | str, where: str) -> Any:
    """What a page of YAML says.

    Raises:
        ValueError: It is not YAML, or too much of it; the message names ``where``.
    """
    if len(text) > SIZE_LIMIT:
        raise ValueError(f"{where} is larger than {SIZE_LIMIT:,} bytes; it should be a page of text.")
    try:
        depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            if number > _EVENT_LIMIT:
                raise _RefusedError(f"{where} holds more than {_EVENT_LIMIT:,} values; it should be a page of text.")
            if isinstance(event, yaml.AliasEvent):
                raise _RefusedError(f"{where}: YAML aliases (*name) are not allowed.")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_LIMIT:
                raise _RefusedError(f"{where} is nested deeper than {_DEPTH_LIMIT} levels.")
        return yaml.load(text, Loader=_UniqueKeys)
    except _RefusedError:
        raise
    except (yaml.YAMLError, *_NO_VALUES) as error:
        raise ValueError(f"{where} is not valid YAML: {' '.join(str(error).split())[:500]}") from error


#: What the parser raises for dates, numbers and tags that are none, such as ``!!bool x``.
_NO_VALUES = (ValueError, TypeError, AttributeError, LookupError, OverflowError)


#: The tag of the key ``<<``, which takes over the keys of another mapping.
_MERGE = "tag:yaml.org,2002:merge"


class _RefusedError(ValueError):
    """Refused before it was understood."""


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses a key given twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                raise yaml.YAMLError(f"merge keys (<<) are not allowed, as in line {key_node.start_mark.line + 1}.")
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"the key {str(key)!r} is given twice, the second time in line {line}.")
            seen.append(key)
        return super().construct_mapping(node, deep)
